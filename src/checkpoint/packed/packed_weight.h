// One matrix of packed integers by GPTQ, AWQ or compressed-tensors: weight = scale * (code - zero).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/packed/packed_config.h"
#include "checkpoint/stored_codes.h"

namespace quatrain {

/// Reads the tensors that a TensorSource holds for one matrix; the source outlives it.
class PackedWeight {
 public:
  virtual ~PackedWeight() = default;

  int64_t rows = 0, columns = 0;
  std::string type;  // what stored_type() calls it: "GPTQ 4-bit"
  ActivationPolicy activation;
  std::string note;  // something odd that the reader has put right; empty mostly

  /// Rows from `begin` on, as many as fill `out`, in FP32.
  void read_rows(int64_t begin, std::span<float> out) const;
  /// Rows as integers; nullopt where q - zero does not fit 8 bits or columns of a group are not neighbours
  /// (GPTQ's desc_act). A scale that is not finite is an error.
  std::optional<StoredCodes> codes(int64_t begin, int64_t count) const;

 protected:
  /// q - zero of rows [begin, begin + count).
  virtual void unpack(int64_t begin, int64_t count, int16_t* out) const = 0;
  /// [count, groups_] scales.
  virtual void scales(int64_t begin, int64_t count, float* out) const = 0;

  /// Throws unless every column's group is one of groups_; forgets an order that says column / group.
  void set_order(const TensorSource& source, const TensorInfo& tensor);

  std::string where_;  // file and linear, for messages
  int64_t group_ = 0;  // columns; 0: the row
  int64_t groups_ = 1;
  std::vector<int32_t> order_;  // the group of each column; empty: column / group_
  int code_bits_ = 0;           // that q - zero fits: 4, 8, or 0 for neither
};

/// NAME.qweight [K bits/32, N] int32 packed along K, NAME.qzeros [G, N bits/32] packed along N, NAME.scales
/// [G, N], NAME.g_idx [K] (may be absent); of a linear of N outputs and K inputs.
std::unique_ptr<PackedWeight> gptq_weight(const TensorSource& source, const std::string& linear,
                                          const PackedConfig& config);
/// NAME.qweight [K, N/8], NAME.qzeros [G, N/8] int32, in both nibble i of a word holds column
/// 0, 2, 4, 6, 1, 3, 5, 7 of eight; NAME.scales [G, N].
std::unique_ptr<PackedWeight> awq_weight(const TensorSource& source, const std::string& linear,
                                         const PackedConfig& config);
/// NAME.weight_packed [N, K bits/32] int32 (code + 2^(bits-1)) with NAME.weight_shape, or NAME.weight int8
/// [N, K]; NAME.weight_scale [N, G], NAME.weight_zero_point (packed along N beside packed weights),
/// NAME.weight_g_idx.
std::unique_ptr<PackedWeight> compressed_weight(const TensorSource& source, const std::string& linear,
                                                const PackedConfig& config);

// For the three readers.

/// The tensor NAME.suffix; absent is an error that names it.
const TensorInfo& packed_part(const TensorSource& source, const std::string& linear, std::string_view suffix);
/// Throws unless the tensor has one of the types and the shape.
void require_packed(const TensorSource& source, const TensorInfo& tensor,
                    std::initializer_list<std::string_view> types, const std::vector<int64_t>& shape,
                    std::string_view why);
/// Element `index` of 32-bit words.
uint32_t packed_word(std::span<const std::byte> bytes, int64_t index);
/// `count` consecutive values from element `first` on, as FP32.
void read_elements(const TensorSource& source, const TensorInfo& tensor, int64_t first, int64_t count,
                   float* out);
/// Columns [begin, begin + count) of scales [groups, rows], turned on their side: FP32 [count, groups].
void read_scale_columns(const TensorSource& source, const TensorInfo& scales, int64_t rows, int64_t begin,
                        int64_t count, float* out);

}  // namespace quatrain
