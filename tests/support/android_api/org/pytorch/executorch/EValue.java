package org.pytorch.executorch;

/** A value that goes into a method or comes out of it. */
public final class EValue {
  final Object value;

  private EValue(Object value) {
    this.value = value;
  }

  public static EValue from(Tensor tensor) {
    return new EValue(tensor);
  }

  public static EValue from(boolean value) {
    return new EValue(value);
  }

  public static EValue from(long value) {
    return new EValue(value);
  }

  public static EValue from(double value) {
    return new EValue(value);
  }

  public static EValue optionalNone() {
    return new EValue(null);
  }

  public boolean isNone() {
    return value == null;
  }

  public boolean isTensor() {
    return value instanceof Tensor;
  }

  public boolean isBool() {
    return value instanceof Boolean;
  }

  public boolean isInt() {
    return value instanceof Long;
  }

  public boolean isDouble() {
    return value instanceof Double;
  }

  public Tensor toTensor() {
    return as(Tensor.class);
  }

  public boolean toBool() {
    return as(Boolean.class);
  }

  public long toInt() {
    return as(Long.class);
  }

  public double toDouble() {
    return as(Double.class);
  }

  private <T> T as(Class<T> type) {
    if (!type.isInstance(value)) {
      throw new IllegalStateException("the value is no " + type.getSimpleName());
    }
    return type.cast(value);
  }
}
