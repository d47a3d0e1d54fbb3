package org.pytorch.executorch;

/** An error of the runtime, with its code. */
public class ExecutorchRuntimeException extends RuntimeException {
  public static final int MEMORY_ALLOCATION_FAILED = 0x21;

  private final int errorCode;

  public ExecutorchRuntimeException(int errorCode, String details) {
    super("[ExecuTorch Error 0x" + Integer.toHexString(errorCode) + "] " + details);
    this.errorCode = errorCode;
  }

  public int getErrorCode() {
    return errorCode;
  }
}
