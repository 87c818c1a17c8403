// `--json FILE` of the programs that time CUDA's kernels: each figure is also a JSON line, with the device, its driver, the clocks meanwhile
// and the commit.
#pragma once

#include <algorithm>
#include <cstring>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "device/cuda.h"
#include "device/gpu_monitor.h"

namespace keel {
extern const char* const kCommit;  // of the checkout this was built from; empty outside of one
}

namespace keel::cuda {

class BenchRecords {
 public:
  // Takes the option out of the arguments. Throws Error where the file cannot be written.
  BenchRecords(const char* program, int& argc, char** argv) : program_(program) {
    for (int i = 1; i + 1 < argc; ++i) {
      if (std::strcmp(argv[i], "--json") != 0) continue;
      out_.open(argv[i + 1], std::ios::app);
      if (!out_) throw Error(std::string("--json ") + argv[i + 1] + ": cannot be written");
      std::copy(argv + i + 2, argv + argc, argv + i);
      argc -= 2;
      const DeviceInfo device = find_device().info;
      device_ = device.name;
      gpu_ = std::make_unique<GpuMonitor>(device.bus_id);
      gpu_->start();
      return;
    }
  }

  void add(const nlohmann::ordered_json& figure) {
    if (!out_.is_open()) return;
    nlohmann::ordered_json record = {{"record", program_}, {"device", device_}, {"keel_commit", kCommit}};
    if (gpu_->problem().empty()) {
      const GpuReading now = gpu_->stop().back();
      gpu_->start();
      record.update({{"driver", gpu_->driver()}, {"sm_mhz", now.sm_mhz}, {"memory_mhz", now.memory_mhz}, {"power_w", now.power_w}, {"temperature_c", now.temperature_c}});
    } else {
      record["driver"] = nullptr, record["gpu_problem"] = gpu_->problem();
    }
    record.update(figure);
    out_ << record.dump() << std::endl;
  }

 private:
  std::string program_, device_;
  std::ofstream out_;
  std::unique_ptr<GpuMonitor> gpu_;
};

}  // namespace keel::cuda
