    .text
    .globl assembly_add
    .type assembly_add, %function
assembly_add:
    add w0, w0, w1
    ret
