// NibbleMatrix on the CPU: the streams of nibble_panels.h in one allocation.
#pragma once

#include <memory>

#include "ops/cpu/nibble_panels.h"
#include "ops/nibble_matmul.h"

namespace quatrain::ops {

class PackedNibbleMatrix final : public NibbleMatrix {
 public:
  PackedNibbleMatrix(const NibblePlanes& planes, int64_t activation_group, ThreadPool& pool);
  int64_t bytes() const override { return bytes_; }
  void row(int64_t row, float* out) const override;

  const NibblePanels& panels() const { return panels_; }
  int64_t unit_columns() const { return unit_columns_; }
  int64_t activation_group() const { return activation_group_; }
  int64_t groups_per_activation() const { return groups_per_activation_; }

 private:
  NibblePanels panels_;
  std::shared_ptr<uint8_t> memory_;
  int64_t bytes_ = 0;
  int64_t unit_columns_ = 0;
  int64_t activation_group_ = 0;
  int64_t groups_per_activation_ = 0;  // finest groups that share a token's scale
};

}  // namespace quatrain::ops
