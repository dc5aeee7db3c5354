// The reference forward: plain FP32 libtorch, 16-bit models and fake-quantised artifacts. It reads artifact
// bytes with its own code and shares no arithmetic with the engine, since each is the other's check.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/config.h"

namespace quatrain {

class ReferenceModel {
 public:
  /// `device`: cpu, cuda or cuda:N, where libtorch has a GPU.
  static std::unique_ptr<ReferenceModel> load(const fs::path& model, int threads = 0,
                                              const std::string& device = "cpu");
  virtual ~ReferenceModel() = default;
  virtual const ModelConfig& config() const = 0;
  /// Logits [ids.size(), vocabulary] of one sequence from position 0.
  virtual std::vector<float> logits(std::span<const int32_t> ids) = 0;
};

}  // namespace quatrain
