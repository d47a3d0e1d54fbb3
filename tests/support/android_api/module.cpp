// The native side of the stand-in for ExecuTorch's Java API, over the libraries of the PyPI wheel.

#include <jni.h>

#include <memory>
#include <string>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr.h>
#include <executorch/runtime/platform/runtime.h>

#include "threadpool.h"

using executorch::aten::ScalarType;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;

static jclass class_of(JNIEnv* env, const char* name) {
  return env->FindClass((std::string("org/pytorch/executorch/") + name).c_str());
}

static std::string text(JNIEnv* env, jstring given) {
  const char* bytes = env->GetStringUTFChars(given, nullptr);
  std::string copy = bytes;
  env->ReleaseStringUTFChars(given, bytes);
  return copy;
}

static void fail(JNIEnv* env, Error error, const std::string& details) {
  jclass kind = class_of(env, "ExecutorchRuntimeException");
  jmethodID make = env->GetMethodID(kind, "<init>", "(ILjava/lang/String;)V");
  env->Throw(static_cast<jthrowable>(
      env->NewObject(kind, make, static_cast<jint>(error), env->NewStringUTF(details.c_str()))));
}

static jlong open(JNIEnv* env, jclass, jstring path, jint mode, jint threads) {
  executorch::runtime::runtime_init();
  auto module = std::make_unique<Module>(
      text(env, path), mode == 1 ? Module::LoadMode::Mmap : Module::LoadMode::File);
  if (const auto names = module->method_names(); !names.ok()) {
    fail(env, names.error(), "Cannot load module");
    return 0;
  }
  if (auto* pool = executorch::extension::threadpool::get_threadpool(); pool && threads > 0) {
    pool->_unsafe_reset_threadpool(static_cast<uint32_t>(threads));
  }
  return reinterpret_cast<jlong>(module.release());
}

static void destroy(JNIEnv*, jclass, jlong module) { delete reinterpret_cast<Module*>(module); }

static jint load(JNIEnv* env, jclass, jlong module, jstring method) {
  return static_cast<jint>(reinterpret_cast<Module*>(module)->load_method(text(env, method)));
}

static jobjectArray methods(JNIEnv* env, jclass, jlong module) {
  const auto names = *reinterpret_cast<Module*>(module)->method_names();
  jobjectArray list = env->NewObjectArray(
      static_cast<jsize>(names.size()), env->FindClass("java/lang/String"), nullptr);
  jsize i = 0;
  for (const std::string& name : names) {
    env->SetObjectArrayElement(list, i++, env->NewStringUTF(name.c_str()));
  }
  return list;
}

// A value for a method. Tensors share the memory of their buffer, and are kept in `tensors`.
static EValue value_of(JNIEnv* env, jobject value, jlongArray shape, jint type,
                       std::vector<executorch::extension::TensorPtr>& tensors) {
  if (shape != nullptr) {
    const jsize dims = env->GetArrayLength(shape);
    std::vector<jlong> sizes(static_cast<size_t>(dims));
    env->GetLongArrayRegion(shape, 0, dims, sizes.data());
    tensors.push_back(executorch::extension::make_tensor_ptr(
        {sizes.begin(), sizes.end()}, env->GetDirectBufferAddress(value),
        static_cast<ScalarType>(type)));
    return EValue(tensors.back());
  }
  jclass kind = env->GetObjectClass(value);
  if (env->IsInstanceOf(value, env->FindClass("java/lang/Long"))) {
    return EValue(static_cast<int64_t>(
        env->CallLongMethod(value, env->GetMethodID(kind, "longValue", "()J"))));
  }
  if (env->IsInstanceOf(value, env->FindClass("java/lang/Double"))) {
    return EValue(env->CallDoubleMethod(value, env->GetMethodID(kind, "doubleValue", "()D")));
  }
  return EValue(env->CallBooleanMethod(value, env->GetMethodID(kind, "booleanValue", "()Z")) != 0);
}

static jobject object_of(JNIEnv* env, const EValue& value) {
  jclass kind = class_of(env, "EValue");
  const auto from = [&](const char* taken) {
    const std::string signature = std::string(taken) + "Lorg/pytorch/executorch/EValue;";
    return env->GetStaticMethodID(kind, "from", signature.c_str());
  };
  if (value.isInt()) {
    return env->CallStaticObjectMethod(kind, from("(J)"), static_cast<jlong>(value.toInt()));
  }
  if (value.isDouble()) {
    return env->CallStaticObjectMethod(kind, from("(D)"), value.toDouble());
  }
  if (value.isBool()) {
    return env->CallStaticObjectMethod(kind, from("(Z)"), static_cast<jboolean>(value.toBool()));
  }
  if (!value.isTensor()) { // as the real one, which knows no None
    fail(env, Error::InvalidArgument, "Unknown EValue type");
    return nullptr;
  }
  const auto& tensor = value.toTensor();
  const std::vector<jlong> sizes(tensor.sizes().begin(), tensor.sizes().end());
  jlongArray shape = env->NewLongArray(static_cast<jsize>(sizes.size()));
  env->SetLongArrayRegion(shape, 0, static_cast<jsize>(sizes.size()), sizes.data());
  jobject bytes = env->NewDirectByteBuffer(tensor.mutable_data_ptr(),
                                           static_cast<jlong>(tensor.nbytes()));
  jclass module = class_of(env, "Module");
  return env->CallStaticObjectMethod(
      module,
      env->GetStaticMethodID(module, "tensor",
                             "(Ljava/nio/ByteBuffer;[JI)Lorg/pytorch/executorch/EValue;"),
      bytes, shape, static_cast<jint>(tensor.scalar_type()));
}

static jobjectArray execute(JNIEnv* env, jclass, jlong module, jstring method, jobjectArray values,
                            jobjectArray shapes, jintArray types) {
  const jsize count = env->GetArrayLength(values);
  std::vector<jint> codes(static_cast<size_t>(count));
  env->GetIntArrayRegion(types, 0, count, codes.data());
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> inputs;
  for (jsize i = 0; i < count; ++i) {
    jobject value = env->GetObjectArrayElement(values, i);
    if (value == nullptr) {
      fail(env, Error::InvalidArgument, "Unsupported input EValue type code: 0");
      return nullptr;
    }
    inputs.push_back(value_of(env, value,
                              static_cast<jlongArray>(env->GetObjectArrayElement(shapes, i)),
                              codes[static_cast<size_t>(i)], tensors));
  }
  const std::string name = text(env, method);
  const auto outputs = reinterpret_cast<Module*>(module)->execute(name, inputs);
  if (!outputs.ok()) {
    fail(env, outputs.error(), "Execution failed for method: " + name);
    return nullptr;
  }
  jobjectArray list =
      env->NewObjectArray(static_cast<jsize>(outputs->size()), class_of(env, "EValue"), nullptr);
  for (size_t i = 0; i < outputs->size(); ++i) {
    jobject object = object_of(env, outputs->at(i));
    if (object == nullptr) {
      return nullptr;
    }
    env->SetObjectArrayElement(list, static_cast<jsize>(i), object);
    env->DeleteLocalRef(object);
  }
  return list;
}

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM* vm, void*) {
  JNIEnv* env = nullptr;
  vm->GetEnv(reinterpret_cast<void**>(&env), JNI_VERSION_1_6);
  const auto native = [](const char* name, const char* signature, auto* function) {
    return JNINativeMethod{const_cast<char*>(name), const_cast<char*>(signature),
                           reinterpret_cast<void*>(function)};
  };
  const JNINativeMethod table[] = {
      native("open", "(Ljava/lang/String;II)J", open),
      native("destroy", "(J)V", destroy),
      native("load", "(JLjava/lang/String;)I", load),
      native("methods", "(J)[Ljava/lang/String;", methods),
      native("execute",
             "(JLjava/lang/String;[Ljava/lang/Object;[[J[I)[Lorg/pytorch/executorch/EValue;",
             execute)};
  env->RegisterNatives(class_of(env, "Module"), table, sizeof table / sizeof *table);
  return JNI_VERSION_1_6;
}
