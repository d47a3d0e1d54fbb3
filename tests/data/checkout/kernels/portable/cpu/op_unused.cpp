int unused_out(int out) {
  return out;
}
