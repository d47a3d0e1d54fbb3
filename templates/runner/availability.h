// Why a backend that is linked cannot be used on this device.
#pragma once

#include <string>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/executor/method_meta.h>

// A checkout has Vulkan's headers. On Apple's systems the library has other names.
#if defined(HAS_backend_vulkan) && !defined(__APPLE__) && __has_include(<vulkan/vulkan_core.h>)
#include <dlfcn.h>
#define VK_NO_PROTOTYPES
#include <vulkan/vulkan_core.h>

// The text of a result that is an error; empty for success.
inline std::string vulkan_error(const char* function, VkResult result) {
  if (result == VK_SUCCESS) {
    return "";
  }
  const std::string said = std::string(function) + " gives ";
  switch (result) {
    case VK_ERROR_INCOMPATIBLE_DRIVER:
      return said + "VK_ERROR_INCOMPATIBLE_DRIVER";
    case VK_ERROR_INITIALIZATION_FAILED:
      return said + "VK_ERROR_INITIALIZATION_FAILED";
    case VK_ERROR_OUT_OF_HOST_MEMORY:
      return said + "VK_ERROR_OUT_OF_HOST_MEMORY";
    default:
      return said + "VkResult " + std::to_string(result);
  }
}

// What keeps Vulkan from starting. ExecuTorch's backend meets the same errors and keeps them to
// itself; this follows its steps: the library under either name, an instance, a device.
inline std::string vulkan_problem() {
  void* library = dlopen("libvulkan.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* error = dlerror();
    const std::string said = error != nullptr ? error : "libvulkan.so.1 cannot be loaded";
    library = dlopen("libvulkan.so", RTLD_NOW | RTLD_LOCAL); // the name on Android
    if (library == nullptr) {
      return said;
    }
  }
  const auto create = reinterpret_cast<PFN_vkCreateInstance>(dlsym(library, "vkCreateInstance"));
  const auto enumerate = reinterpret_cast<PFN_vkEnumeratePhysicalDevices>(
      dlsym(library, "vkEnumeratePhysicalDevices"));
  if (create == nullptr || enumerate == nullptr) {
    return "libvulkan.so has no vkCreateInstance";
  }
  VkInstanceCreateInfo info{};
  info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
  VkInstance instance = VK_NULL_HANDLE;
  uint32_t devices = 0;
  std::string problem = vulkan_error("vkCreateInstance", create(&info, nullptr, &instance));
  if (problem.empty()) {
    problem = vulkan_error("vkEnumeratePhysicalDevices", enumerate(instance, &devices, nullptr));
  }
  if (!problem.empty()) {
    return problem;
  }
  return devices == 0 ? "no driver has a device" : "no device has what ExecuTorch requires";
}

inline std::string why_unavailable(const std::string& backend) {
  return backend == "VulkanBackend" ? vulkan_problem() : "";
}
#else
inline std::string why_unavailable(const std::string&) {
  return "";
}
#endif

// One line on stderr for each backend of the method that is linked and says that it cannot be used.
// ExecuTorch's own log does not come with every build, and only some backends log the reason.
inline void tell_unavailable(const executorch::runtime::MethodMeta& meta) {
  for (size_t i = 0; i < meta.num_backends(); ++i) {
    const std::string name = *meta.get_backend_name(i);
    const auto* backend = executorch::runtime::get_backend_class(name.c_str());
    if (backend != nullptr && !backend->is_available()) {
      const std::string why = why_unavailable(name);
      std::fprintf(stderr, "etdeploy-runner: backend %s is linked, but not available%s%s\n",
                   name.c_str(), why.empty() ? "" : ": ", why.c_str());
    }
  }
}
