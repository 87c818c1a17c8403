#include "device/gpu_monitor.h"

#include <dlfcn.h>

#include <chrono>
#include <cmath>
#include <utility>

namespace keel {
namespace {

constexpr std::chrono::milliseconds kInterval{100};
constexpr unsigned kSmClock = 1, kMemoryClock = 2, kGpuTemperature = 0;  // NVML's numbers

}  // namespace

// The part of NVML that is used, as its documentation has it. Every function returns 0 for success.
struct GpuMonitor::Nvml {
  using Device = void*;
  void* library = nullptr;
  Device device = nullptr;
  int (*init)();
  int (*shutdown)();
  const char* (*error_string)(int);
  int (*driver_version)(char*, unsigned);
  int (*by_bus_id)(const char*, Device*);
  int (*clock)(Device, unsigned, unsigned*);
  int (*power)(Device, unsigned*);        // mW
  int (*power_limit)(Device, unsigned*);  // mW
  int (*temperature)(Device, unsigned, unsigned*);
  bool initialised = false;

  // The name of the first function that the library lacks, or null.
  const char* bind() {
    const char* missing = nullptr;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr && missing == nullptr) missing = name;
    };
    find(init, "nvmlInit_v2");
    find(shutdown, "nvmlShutdown");
    find(error_string, "nvmlErrorString");
    find(driver_version, "nvmlSystemGetDriverVersion");
    find(by_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    find(clock, "nvmlDeviceGetClockInfo");
    find(power, "nvmlDeviceGetPowerUsage");
    find(power_limit, "nvmlDeviceGetEnforcedPowerLimit");
    find(temperature, "nvmlDeviceGetTemperature");
    return missing;
  }

  ~Nvml() {
    if (initialised) shutdown();
    if (library != nullptr) dlclose(library);
  }
};

GpuMonitor::GpuMonitor(const std::string& bus_id, const char* library) : nvml_(std::make_unique<Nvml>()) {
  nvml_->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (nvml_->library == nullptr) {
    problem_ = dlerror();
    return;
  }
  if (const char* missing = nvml_->bind()) {
    problem_ = std::string(library) + " has no " + missing;
    return;
  }
  const auto failed = [&](int code, const std::string& what) {
    if (code != 0) problem_ = what + ": " + nvml_->error_string(code);
    return code != 0;
  };
  if (failed(nvml_->init(), "NVML does not start")) return;
  nvml_->initialised = true;
  char version[96] = "";
  if (failed(nvml_->driver_version(version, sizeof(version)), "NVML does not tell the driver's version")) return;
  if (failed(nvml_->by_bus_id(bus_id.c_str(), &nvml_->device), "NVML has no GPU " + bus_id)) return;
  driver_ = version;
}

GpuMonitor::~GpuMonitor() { stop_thread(); }

double GpuMonitor::power_limit_w() const {
  unsigned milliwatts = 0;
  return problem_.empty() && nvml_->power_limit(nvml_->device, &milliwatts) == 0 ? milliwatts * 1e-3 : NAN;
}

GpuReading GpuMonitor::read() const {
  unsigned value = 0;
  const auto got = [&](int code, double unit) { return code == 0 ? value * unit : NAN; };
  GpuReading reading;
  reading.sm_mhz = got(nvml_->clock(nvml_->device, kSmClock, &value), 1);
  reading.memory_mhz = got(nvml_->clock(nvml_->device, kMemoryClock, &value), 1);
  reading.power_w = got(nvml_->power(nvml_->device, &value), 1e-3);
  reading.temperature_c = got(nvml_->temperature(nvml_->device, kGpuTemperature, &value), 1);
  return reading;
}

void GpuMonitor::start() {
  if (!problem_.empty()) return;
  stop_thread();
  readings_ = {read()};
  stopping_ = false;
  thread_ = std::thread([this] {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kInterval, [this] { return stopping_; })) readings_.push_back(read());
  });
}

std::vector<GpuReading> GpuMonitor::stop() {
  if (!thread_.joinable()) return {};
  stop_thread();
  readings_.push_back(read());
  return std::exchange(readings_, {});
}

void GpuMonitor::stop_thread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace keel
