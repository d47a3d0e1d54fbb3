package org.pytorch.executorch;

/** Loads the native library, once. */
public final class ExecuTorchRuntime {
  private static final ExecuTorchRuntime RUNTIME = new ExecuTorchRuntime();

  static {
    // Not libexecutorch, as ExecuTorch's own: the wheel has a library of that name.
    System.loadLibrary("executorch_jni");
  }

  private ExecuTorchRuntime() {}

  public static ExecuTorchRuntime getRuntime() {
    return RUNTIME;
  }
}
