package org.pytorch.executorch;

/** Types of tensors, with ExecuTorch's codes of scalar types. */
public enum DType {
  UINT8(0),
  INT8(1),
  INT16(2),
  INT32(3),
  INT64(4),
  HALF(5),
  FLOAT(6),
  DOUBLE(7),
  BOOL(11),
  BFLOAT16(15);

  public final int jniCode;

  DType(int code) {
    jniCode = code;
  }

  static DType of(int code) {
    for (DType type : values()) {
      if (type.jniCode == code) {
        return type;
      }
    }
    throw new IllegalArgumentException("no type has the code " + code);
  }
}
