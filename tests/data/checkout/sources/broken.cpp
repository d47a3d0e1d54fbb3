#error "a target that the runner does not link was compiled"
