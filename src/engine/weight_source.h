// Where the engine takes a model's weights from: a 16-bit checkpoint or an artifact, seen alike.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/number_format.h"
#include "checkpoint/artifact.h"
#include "model/checkpoint.h"
#include "model/config.h"

namespace quatrain {

/// Thread-safe once built.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  /// Begins messages: the model's path.
  virtual std::string where() const = 0;
  virtual const ModelConfig& config() const = 0;

  /// Throws unless the unquantised tensor `name` is there with this shape.
  virtual void expect(const std::string& name, const std::vector<int64_t>& shape) const = 0;
  /// Rows [begin, end) of an unquantised matrix as FP32.
  virtual void read_rows(const std::string& name, int64_t begin, int64_t end, float* out) const = 0;
  /// A whole unquantised vector of `size` values.
  virtual std::vector<float> vector(const std::string& name, int64_t size) const = 0;

  /// Whether the weight of a linear (or the embedding) lies in nibble planes.
  virtual bool quantized(const std::string&) const { return false; }
  virtual NibblePlanes planes(const std::string& linear) const;
  /// How a linear's input is transformed and quantised; bits 16 and no transform unless the artifact says
  /// more.
  virtual LinearPolicy policy(const std::string&) const { return {}; }
  virtual KvPolicy kv(int64_t) const { return {}; }
  /// The head reads the embedding's planes.
  virtual bool tied_planes() const { return false; }
};

std::unique_ptr<WeightSource> checkpoint_source(std::unique_ptr<Checkpoint> checkpoint);
std::unique_ptr<WeightSource> artifact_source(const fs::path& directory);

}  // namespace quatrain
