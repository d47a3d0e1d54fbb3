int relu_out(int out) {
  return out;
}
