// What the GPU's driver says while something runs: clocks, power, heat. NVML is loaded where the machine has it; nothing links against it.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace keel {

// NaN where the driver does not say.
struct GpuReading {
  double sm_mhz, memory_mhz, power_w, temperature_c;
};

// Thread rule: one thread calls.
class GpuMonitor {
 public:
  // `bus_id`: "0000:18:00.0".
  explicit GpuMonitor(const std::string& bus_id, const char* library = "libnvidia-ml.so.1");
  GpuMonitor(const GpuMonitor&) = delete;
  ~GpuMonitor();

  const std::string& problem() const { return problem_; }  // why there is nothing to read; empty where there is
  const std::string& driver() const { return driver_; }    // "580.159.04"; empty with a problem
  double power_limit_w() const;

  void start();                    // reads now and every kInterval, on a thread of its own
  std::vector<GpuReading> stop();  // reads once more; all since start(), at least two. None with a problem

 private:
  struct Nvml;
  GpuReading read() const;
  void stop_thread();

  std::unique_ptr<Nvml> nvml_;
  std::string problem_, driver_;
  std::vector<GpuReading> readings_;
  std::thread thread_;
  std::mutex mutex_;  // guards stopping_, and with it what the thread waits for
  std::condition_variable changed_;
  bool stopping_ = false;
};


}  // namespace keel
