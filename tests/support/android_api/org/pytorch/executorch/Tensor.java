package org.pytorch.executorch;

import java.nio.Buffer;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;

/** Values in memory that native code shares; as in ExecuTorch, a method's next call reuses it. */
public final class Tensor {
  final Buffer data;
  private final long[] shape;
  private final DType dtype;

  private Tensor(Buffer data, long[] shape, DType dtype) {
    if (!data.isDirect() || data.capacity() != numel(shape)) {
      throw new IllegalArgumentException(
          "a direct buffer of " + numel(shape) + " elements is needed, not " + data);
    }
    this.data = data;
    this.shape = shape.clone();
    this.dtype = dtype;
  }

  /** What a method gave; of types that Java has no buffer for, only the type is known. */
  static Tensor ofNative(ByteBuffer bytes, long[] shape, int code) {
    ByteBuffer data = bytes.order(ByteOrder.nativeOrder());
    DType dtype = DType.of(code);
    switch (dtype) {
      case FLOAT:
        return new Tensor(data.asFloatBuffer(), shape, dtype);
      case DOUBLE:
        return new Tensor(data.asDoubleBuffer(), shape, dtype);
      case HALF:
        return new Tensor(data.asShortBuffer(), shape, dtype);
      case INT64:
        return new Tensor(data.asLongBuffer(), shape, dtype);
      case INT32:
        return new Tensor(data.asIntBuffer(), shape, dtype);
      default:
        return new Tensor(data, shape, dtype);
    }
  }

  public static Tensor fromBlob(FloatBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.FLOAT);
  }

  public static Tensor fromBlob(DoubleBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.DOUBLE);
  }

  public static Tensor fromBlob(ShortBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.HALF);
  }

  public static Tensor fromBlob(LongBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.INT64);
  }

  public static Tensor fromBlob(IntBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.INT32);
  }

  public static Tensor fromBlob(ByteBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.INT8);
  }

  public static Tensor fromBlobUnsigned(ByteBuffer data, long[] shape) {
    return new Tensor(data, shape, DType.UINT8);
  }

  public static LongBuffer allocateLongBuffer(int count) {
    return ByteBuffer.allocateDirect(8 * count).order(ByteOrder.nativeOrder()).asLongBuffer();
  }

  public static long numel(long[] shape) {
    long product = 1;
    for (long size : shape) {
      product *= size;
    }
    return product;
  }

  public long numel() {
    return numel(shape);
  }

  public long[] shape() {
    return shape.clone();
  }

  public DType dtype() {
    return dtype;
  }

  public float[] getDataAsFloatArray() {
    float[] values = new float[(int) numel()];
    if (dtype == DType.HALF) {
      for (int i = 0; i < values.length; ++i) {
        values[i] = half(((ShortBuffer) data).get(i));
      }
    } else {
      only(DType.FLOAT);
      ((FloatBuffer) data).duplicate().rewind().get(values);
    }
    return values;
  }

  public double[] getDataAsDoubleArray() {
    only(DType.DOUBLE);
    double[] values = new double[(int) numel()];
    ((DoubleBuffer) data).duplicate().rewind().get(values);
    return values;
  }

  public short[] getDataAsShortArray() {
    only(DType.HALF);
    short[] values = new short[(int) numel()];
    ((ShortBuffer) data).duplicate().rewind().get(values);
    return values;
  }

  public long[] getDataAsLongArray() {
    only(DType.INT64);
    long[] values = new long[(int) numel()];
    ((LongBuffer) data).duplicate().rewind().get(values);
    return values;
  }

  public int[] getDataAsIntArray() {
    only(DType.INT32);
    int[] values = new int[(int) numel()];
    ((IntBuffer) data).duplicate().rewind().get(values);
    return values;
  }

  public byte[] getDataAsByteArray() {
    only(DType.INT8);
    return bytes();
  }

  public byte[] getDataAsUnsignedByteArray() {
    only(DType.UINT8);
    return bytes();
  }

  public void copyDataInto(FloatBuffer target) {
    only(DType.FLOAT);
    target.put((FloatBuffer) ((FloatBuffer) data).duplicate().rewind());
  }

  private byte[] bytes() {
    byte[] values = new byte[(int) numel()];
    ((ByteBuffer) data).duplicate().rewind().get(values);
    return values;
  }

  private void only(DType type) {
    if (dtype != type) {
      throw new IllegalStateException("a tensor of " + dtype + " has no such values");
    }
  }

  private static float half(short bits) {
    int exponent = bits >> 10 & 31;
    int fraction = bits & 1023;
    float size =
        exponent == 31
            ? (fraction == 0 ? Float.POSITIVE_INFINITY : Float.NaN)
            : exponent == 0
                ? Math.scalb((float) fraction, -24)
                : Math.scalb(1024f + fraction, exponent - 25);
    return bits < 0 ? -size : size;
  }
}
