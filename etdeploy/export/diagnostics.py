"""What goes wrong in an export, by the text of an exception, and what to do about it.

`kind` among a pattern's facts is that of `ExportFailure`. Nothing here imports torch.
"""

from __future__ import annotations

from etdeploy.core.diagnostics import FailurePattern, FailureTable

_EXIT_CODE = 3
# What ended a worker that did not describe its failure: a signal's name, or its exit code.
CRASH_FAILURES = FailureTable(
    "An export process that ends early",
    _EXIT_CODE,
    (
        FailurePattern(
            r"^SIGKILL$",
            "the export process was killed (SIGKILL); the usual cause is that memory ran out",
            "Close other programs, export a smaller model, or use a larger machine.",
        ),
        FailurePattern(
            r"^(?P<signal>SIG\w+)$",
            "the export process crashed ({signal}), in native code of PyTorch, ExecuTorch or an "
            "extension that the model uses",
            "See the log for the Python stack at the crash.",
        ),
        FailurePattern(
            r"^exit code (?P<code>-?\d+)$",
            "the export process ended with exit code {code} and no reason; code that the model "
            "imports may have ended it",
            "Read the end of the log.",
        ),
    ),
)
# What the user's own code raises, in any step. The message of the failure is the exception itself.
USER_CODE_FAILURES = FailureTable(
    "The model's own code",
    _EXIT_CODE,
    (
        FailurePattern(
            r"compiled with CUDA|NVIDIA driver|CUDA (error|device)|re-initialize CUDA",
            "the code uses CUDA",
            "Models are exported on the CPU: leave out .cuda() and .to('cuda'), and load weights "
            "with\ntorch.load(path, map_location='cpu').",
        ),
        FailurePattern(
            r"device meta|meta tensor",
            "a parameter is on the meta device",
            "Give the parameters values before the factory returns: on the meta device they have "
            "none.",
        ),
        FailurePattern(
            r"Exporting a ScriptModule",
            "the factory returns a module of TorchScript",
            "Return the nn.Module itself from the factory, not the result of torch.jit.",
        ),
        FailurePattern(
            r"_OpNamespace",
            "an operator of torch.ops is not registered",
            "Name the file that registers the operator: --set export.custom_ops=path/to/ops.py "
            "(or a .so)",
        ),
    ),
)
# What a model raises when it is called with its example inputs.
MODEL_CALL_FAILURES = FailureTable(
    "The model, called with its example inputs",
    _EXIT_CODE,
    (
        FailurePattern(
            r"view size is not compatible",
            "view() cannot change the shape of a tensor with these strides",
            "Use reshape() there in place of view(): programs take inputs whose values lie in the "
            "order of\ntheir shape, and the strides of the example input are changed to that.",
        ),
        FailurePattern(
            r"\bforward\(\) (takes|missing|got)|shapes cannot be multiplied|size of tensor"
            r"|same dtype|expected input\[",
            "the example inputs do not fit forward",
            "Compare the example inputs that the factory returns with the arguments of forward: "
            "their number,\norder, shapes and data types.",
        ),
        FailurePattern(
            "",
            "the model raises an exception",
            "Call the module with the same inputs in Python, without etdeploy, to see more of it.",
        ),
    ),
)
# What torch.export and ExecuTorch raise while a traced model is lowered.
LOWERING_FAILURES = FailureTable(
    "Lowering",
    _EXIT_CODE,
    (
        FailurePattern(
            r"Operator torch\._ops\.(?P<namespace>\w+)\.(?P<name>\w+)\.\w+ is not in Core ATen",
            "the operator {namespace}::{name} is not in the core ATen set, so ExecuTorch has no "
            "kernel for it",
            "Replace it with other operators in the model's code, or compute it outside the model.",
            facts={"kind": "operator"},
        ),
        FailurePattern(
            r"finite upper bound",
            "a dynamic size has no upper bound, and a program's memory is planned for the largest "
            "one: {error}",
            "Give the dimension a bound, torch.export.Dim(name, max=512), or a size that is read "
            "from a\ntensor one with torch._check(size <= 512).",
            facts={"kind": "dynamic-shapes"},
        ),
        FailurePattern(
            r"torch\.complex\d+|complex dtype|ComplexFloat",
            "the model computes with complex numbers, which cannot be lowered",
            "Let the model compute with the real and the imaginary part as two real tensors, or "
            "leave the\ntransform (fft, stft) to the code that calls the program.",
            facts={"kind": "operator"},
        ),
        FailurePattern(
            r"Could not guard on data-dependent",
            "a size in the model depends on the values of a tensor, and nothing bounds it",
            "Bound it where it is read: n = x.item(); torch._check(n >= 0); torch._check(n <= 512)"
            "\nOr keep the size fixed, and mask the rest: torch.where(mask, x, 0)",
            facts={"kind": "data-dependent"},
        ),
        FailurePattern(
            r"Node \S+ with op .* was not decomposed or delegated",
            "the backend does not take the operator as the model uses it, and ExecuTorch has no "
            "kernel for it",
            "Replace it with other operators in the model's code, or choose another backend:\n"
            "--set export.backend=portable shows whether the CPU's kernels run it.",
            facts={"kind": "operator"},
        ),
        FailurePattern(
            r"Constant (?P<tensor>\S+) is mutated in the forward method",
            "the model writes into a tensor that is not one of its buffers, so the program cannot "
            "keep the new values",
            "Register it in the module's __init__: self.register_buffer('name', tensor)",
            facts={"kind": "lowering"},
        ),
    ),
)
OTHER_OPERATORS = (
    "Another scheme, export.quantization, or another backend, export.backend, may have operators "
    "for it;\nor compute it with other operators in the model's code. The log has all that "
    "ExecuTorch printed."
)
# Codes of ExecuTorch's runtime/core/error.h, written as `error: 0x:1` and as `error 0x12`: the
# program itself is wrong. Others, such as those of a missing operator or of memory, are about this
# machine.
PROGRAM_FAILURES = FailureTable(
    "A lowered program that ExecuTorch does not load or run",
    _EXIT_CODE,
    tuple(
        FailurePattern(
            rf"error:? 0x:?0*{code:x}\b",
            cause,
            OTHER_OPERATORS,
        )
        for code, cause in (
            (0x1, "internal error"),
            (0x10, "not supported"),
            (0x11, "not implemented"),
            (0x12, "invalid argument"),
            (0x13, "invalid type"),
            (0x23, "invalid program"),
            (0x30, "the delegate does not take it"),
        )
    ),
)
# Exceptions of huggingface_hub: the name of the class, the HTTP status if there is one, the text.
_LOG_IN = "hf auth login   (or: export HF_TOKEN=..., a token of {hub}/settings/tokens)"
_WITHOUT_HUB = (
    "On a machine with a network: hf download {name} --local-dir {folder}\n"
    "Then copy that folder here: --model ./{folder}"
)
# Follows the text for an id without an organization, which may be meant as a folder.
BARE_ID = "\n[no organization]"
HUB_FAILURES = FailureTable(
    "Models of the Hugging Face hub",
    _EXIT_CODE,
    (
        FailurePattern(
            r"^GatedRepoError ",
            "{model} is gated: it is available to users who have accepted its licence",
            f"Accept it at {{hub}}/{{model}}, and log in: {_LOG_IN}",
        ),
        FailurePattern(
            r"^RevisionNotFoundError ",
            "{model} has no revision {revision}",
            "Its branches and tags are at {hub}/{model}/tree/main",
        ),
        FailurePattern(
            r"^\w+ 401: [\s\S]*Invalid credentials",
            "the Hugging Face hub refuses the token",
            f"Log in again: {_LOG_IN}",
        ),
        FailurePattern(
            r"^\w+ 40[134]: [\s\S]*\n\[no organization\]$",
            "there is no folder {model}, and the Hugging Face hub has no model {model}, or it is "
            "private",
            "Name the path of a folder, or an id with its organization, like "
            "openai-community/gpt2.\n"
            f"If {{hub}}/{{model}} is there in a browser, log in: {_LOG_IN}",
        ),
        FailurePattern(
            r"^\w+ 40[134]: ",
            "the Hugging Face hub has no model {model}, or it is private",
            f"Look at {{hub}}/{{model}} in a browser. If it is there, log in: {_LOG_IN}",
        ),
        FailurePattern(
            r"^\w+ \d+: \s*(?P<reason>.*)",
            "the Hugging Face hub cannot provide {model}: {reason}",
            "Try again later, or name a folder: --model path/to/model",
        ),
        FailurePattern(
            r"^OfflineModeIsEnabled: ",
            "{model} is not on this machine, and HF_HUB_OFFLINE is set",
            _WITHOUT_HUB,
        ),
        FailurePattern(
            "",
            "{model} is not on this machine, and {hub} cannot be reached ({reason})",
            _WITHOUT_HUB,
        ),
    ),
)
