// Input tensors from files, output tensors as contiguous bytes.
#pragma once

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr.h>

#include "files.h"

using executorch::aten::ScalarType;
using executorch::runtime::EValue;
using executorch::runtime::TensorInfo;
using Shape = std::vector<int64_t>;
using Bytes = std::vector<uint8_t>;
constexpr size_t kPadding = 64; // XNNPACK reads a little beyond the end of a tensor

inline std::string type_name(ScalarType type) {
  static const std::map<ScalarType, const char*> names{{ScalarType::Float, "float32"},
      {ScalarType::Double, "float64"}, {ScalarType::Half, "float16"}, {ScalarType::Bool, "bool"},
      {ScalarType::BFloat16, "bfloat16"}, {ScalarType::Byte, "uint8"}, {ScalarType::Char, "int8"},
      {ScalarType::Short, "int16"}, {ScalarType::Int, "int32"}, {ScalarType::Long, "int64"},
      {ScalarType::UInt16, "uint16"}, {ScalarType::UInt32, "uint32"}};
  return names.count(type) ? names.at(type) : executorch::runtime::toString(type);
}

// Strides, in elements, of a tensor whose last dimension is the innermost.
inline Shape contiguous_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) {
    strides[i - 1] = strides[i] * shape[i];
  }
  return strides;
}

// Copies the elements of a tensor from one set of strides to another.
inline void reorder(const uint8_t* from, const Shape& from_strides, uint8_t* to,
                    const Shape& to_strides, const Shape& shape, size_t element, size_t dim = 0) {
  if (dim == shape.size()) {
    std::memcpy(to, from, element);
    return;
  }
  for (int64_t i = 0; i < shape[dim]; ++i) {
    reorder(from + i * from_strides[dim] * element, from_strides,
            to + i * to_strides[dim] * element, to_strides, shape, element, dim + 1);
  }
}

// A tensor with the type of one of the method's inputs or outputs.
inline executorch::extension::TensorPtr make_tensor(
    const Shape& shape, void* memory, const executorch::runtime::TensorInfo& info) {
  const std::vector<uint8_t> dim_order(info.dim_order().begin(), info.dim_order().end());
  return executorch::extension::make_tensor_ptr(
      {shape.begin(), shape.end()}, memory, dim_order, {}, info.scalar_type());
}
inline executorch::extension::TensorPtr make_tensor(
    const Shape& shape, Bytes& bytes, const executorch::runtime::TensorInfo& info) {
  return make_tensor(shape, static_cast<void*>(bytes.data()), info);
}

// Inputs of a method with the memory behind them.
struct Inputs {
  std::vector<Bytes> buffers;
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> values;
};

// Reads the rest of a line, `dimensions sizes... file`, and the file.
inline void add_tensor(Inputs& inputs, std::istream& line, const std::string& dtype,
                       const std::filesystem::path& folder,
                       const executorch::runtime::TensorInfo& info, const std::string& expects) {
  size_t dims = 0;
  line >> dims;
  Shape shape(std::min<size_t>(dims, 16));
  std::for_each(shape.begin(), shape.end(), [&](int64_t& size) { line >> size; });
  std::string name;
  std::getline(line >> std::ws, name);
  const Shape limits(info.sizes().begin(), info.sizes().end()); // the largest sizes if dynamic
  const auto fits = [](int64_t size, int64_t limit) { return 0 <= size && size <= limit; };
  if (!line || dtype != type_name(info.scalar_type()) ||
      !std::equal(shape.begin(), shape.end(), limits.begin(), limits.end(), fits)) {
    throw Failure(kInputs, expects + type_name(info.scalar_type()) + " " + json_sizes(limits) +
                  ", got " + dtype + " " + json_sizes(shape));
  }
  const size_t element = executorch::runtime::elementSize(info.scalar_type());
  const size_t size = std::accumulate(shape.begin(), shape.end(), element, std::multiplies<>());
  std::ifstream file(folder / name, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() != size) {
    throw Failure(kInputs, expects + std::to_string(size) + " bytes, " +
                  (folder / name).string() + " gives " + std::to_string(bytes.size()));
  }
  Bytes& buffer = inputs.buffers.emplace_back(size + kPadding);
  const auto tensor = inputs.tensors.emplace_back(make_tensor(shape, buffer, info));
  reorder(reinterpret_cast<const uint8_t*>(bytes.data()), contiguous_strides(shape), buffer.data(),
          {tensor->strides().begin(), tensor->strides().end()}, shape, element);
  inputs.values.emplace_back(tensor);
}

// Reads a list with a line for each input; files are relative to the list.
//     float32 4 1 3 224 224 inputs/0.bin     dtype, dimensions, sizes, contiguous bytes
//     Int 5, Double 0.5, Bool 1 or None      an input that is not a tensor
inline Inputs read_inputs(const std::string& path, const executorch::runtime::MethodMeta& meta) {
  Inputs inputs;
  std::ifstream list(path);
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const std::string kind = executorch::runtime::tag_to_string(*meta.input_tag(i));
    const std::string expects = std::string("method ") + meta.name() + " expects input " +
        std::to_string(i) + " of ";
    std::string text, given;
    std::getline(list, text);
    std::istringstream line(text);
    line >> given;
    int64_t whole = 0; // not through a double, which has 53 bits
    if (double number = 0; kind == "Tensor" && line) {
      add_tensor(inputs, line, given, std::filesystem::path(path).parent_path(),
                 *meta.input_tensor_meta(i), expects);
    } else if (given == kind && (kind == "Int" || kind == "Bool") && line >> whole) {
      inputs.values.push_back(kind == "Int" ? EValue(whole) : EValue(whole != 0));
    } else if (given == kind && (kind == "None" || (kind == "Double" && line >> number))) {
      inputs.values.push_back(kind == "None" ? EValue() : EValue(number));
    } else {
      throw Failure(kInputs, expects + "kind " + kind + ", got '" + text + "' from '" + path + "'");
    }
  }
  if (std::string text; std::getline(list, text)) {
    throw Failure(kInputs, std::string("method ") + meta.name() + " takes no input '" + text + "'");
  }
  return inputs;
}

// Gives memory to the output tensors that the program's memory plan leaves out; keep the result.
inline std::vector<Bytes> provide_outputs(executorch::extension::Module& module,
                                          const executorch::runtime::MethodMeta& meta) {
  std::vector<Bytes> buffers;
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    if (*meta.output_tag(i) != executorch::runtime::Tag::Tensor ||
        meta.output_tensor_meta(i)->is_memory_planned()) {
      continue;
    }
    const auto info = *meta.output_tensor_meta(i);
    auto& buffer = buffers.emplace_back(info.nbytes() + kPadding);
    // Rejected for an output that is an input or a constant: that one already has memory.
    (void)module.set_output(
        meta.name(), make_tensor({info.sizes().begin(), info.sizes().end()}, buffer, info), i);
  }
  return buffers;
}

// A tensor's elements, the last dimension innermost.
inline Bytes contiguous_bytes(const executorch::aten::Tensor& tensor) {
  const Shape shape(tensor.sizes().begin(), tensor.sizes().end());
  const Shape strides(tensor.strides().begin(), tensor.strides().end());
  Bytes bytes(tensor.nbytes());
  reorder(static_cast<const uint8_t*>(tensor.const_data_ptr()), strides, bytes.data(),
          contiguous_strides(shape), shape, executorch::runtime::elementSize(tensor.scalar_type()));
  return bytes;
}

// Tells the tensors of two runs apart, as JSON: FNV-1a with 64 bits
// (http://www.isthe.com/chongo/tech/comp/fnv/).
inline std::string json_digest(const std::vector<EValue>& values) {
  uint64_t digest = 0xcbf29ce484222325;
  for (const EValue& value : values) {
    for (const uint8_t byte : value.isTensor() ? contiguous_bytes(value.toTensor()) : Bytes()) {
      digest = (digest ^ byte) * 0x100000001b3;
    }
  }
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(digest));
  return json_string(text);
}

// Writes tensors as <folder>/<i>.bin and describes every output as JSON.
inline std::string write_outputs(const std::vector<EValue>& values, const std::string& folder) {
  std::filesystem::create_directories(folder);
  size_t index = 0;
  return json_list(values, [&](const EValue& value) {
    const std::string name = std::to_string(index++) + ".bin";
    const std::string kind = executorch::runtime::tag_to_string(value.tag);
    std::ostringstream json;
    json.precision(17);
    json << "\n    {\"kind\": " << json_string(kind);
    if (value.isTensor()) {
      const auto tensor = value.toTensor();
      const Shape shape(tensor.sizes().begin(), tensor.sizes().end());
      const Bytes bytes = contiguous_bytes(tensor);
      write_file(folder + "/" + name, bytes.data(), bytes.size());
      json << ", \"dtype\": " << json_string(type_name(tensor.scalar_type()))
           << ", \"shape\": " << json_sizes(shape) << ", \"path\": " << json_string(name);
    } else if (value.isInt()) {
      json << ", \"value\": " << value.toInt();
    } else if (value.isBool()) {
      json << ", \"value\": " << (value.toBool() ? "true" : "false");
    } else if (value.isDouble() && std::isfinite(value.toDouble())) {
      json << ", \"value\": " << value.toDouble();
    }
    return json.str() + "}";
  });
}
