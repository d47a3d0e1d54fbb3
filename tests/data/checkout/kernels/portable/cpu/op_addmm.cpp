int addmm_out(int out) {
  return out;
}
