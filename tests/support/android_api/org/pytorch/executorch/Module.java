package org.pytorch.executorch;

import java.io.Closeable;
import java.io.File;
import java.nio.ByteBuffer;

/** A program; methods do not share memory, as in ExecuTorch's own class. */
public class Module implements Closeable {
  public static final int LOAD_MODE_FILE = 0;
  public static final int LOAD_MODE_MMAP = 1;

  /** Programs in memory now, and at most until now. */
  public static int loaded;

  public static int mostLoaded;

  private long handle;

  private Module(String path, int loadMode, int threads) {
    ExecuTorchRuntime.getRuntime();
    handle = open(path, loadMode, threads);
    count(1);
  }

  public static Module load(String path, int loadMode, int threads) {
    if (path == null || !new File(path).isFile()) {
      throw new IllegalArgumentException("Cannot load model path: path does not exist: " + path);
    }
    return new Module(path, loadMode, threads);
  }

  public EValue[] execute(String method, EValue... inputs) {
    require(method);
    Object[] values = new Object[inputs.length];
    long[][] shapes = new long[inputs.length][];
    int[] types = new int[inputs.length];
    for (int i = 0; i < inputs.length; ++i) {
      values[i] = inputs[i].value;
      if (inputs[i].isTensor()) {
        Tensor tensor = inputs[i].toTensor();
        values[i] = tensor.data;
        shapes[i] = tensor.shape();
        types[i] = tensor.dtype().jniCode;
      }
    }
    return execute(handle, method, values, shapes, types);
  }

  public void loadMethod(String method) {
    require(method);
    int error = load(handle, method);
    if (error != 0) {
      throw new ExecutorchRuntimeException(error, "Failed to load method: " + method);
    }
  }

  public String[] getMethods() {
    require("");
    return methods(handle);
  }

  public void destroy() {
    if (handle != 0) {
      destroy(handle);
      handle = 0;
      count(-1);
    }
  }

  @Override
  public void close() {
    destroy();
  }

  private static synchronized void count(int more) {
    loaded += more;
    mostLoaded = Math.max(mostLoaded, loaded);
  }

  private void require(String method) {
    if (handle == 0) {
      throw new IllegalStateException("Module has been destroyed: " + method);
    }
  }

  // Called from native code.
  private static EValue tensor(ByteBuffer data, long[] shape, int type) {
    return EValue.from(Tensor.ofNative(data, shape, type));
  }

  private static native long open(String path, int loadMode, int threads);

  private static native void destroy(long handle);

  private static native int load(long handle, String method);

  private static native String[] methods(long handle);

  private static native EValue[] execute(
      long handle, String method, Object[] values, long[][] shapes, int[] types);
}
