int standin_flatcc(void) { return 0; }
