// Decode attention over 4-bit pages, and what it takes along of the steps beside it.
#pragma once

#include "ops/cuda/device_activations.h"
#include "ops/cuda/kv_pages.h"
#include "ops/cuda/quantize_rows.h"
#include "ops/cuda/rotate_heads.h"

namespace quatrain::ops {

struct KvDecodeStep {
  /// With turns_in_registers(), where every row is the newest token of a sequence of its own: KvAttention::q
  /// is read as it was before rotate_heads_and_append() with this rotation, k and v stand right of it, and
  /// the kernel does what that does, except that q stays in memory as it was. Page table, lengths and the
  /// tokens before must have been written before the stream's last kernel that was launched without overlap:
  /// they are read early.
  const HeadRotation* rotation = nullptr;
  uint8_t* pages = nullptr;           // the same pages, to be written
  unsigned long long* bad = nullptr;  // as in kv_append()
  /// The output's codes, as quantize_rows() with these options makes them, instead of the output.
  DeviceActivations* codes = nullptr;
  RowOptions options;
};

/// Whether kv4_decode_attention takes this: 4 bits, the head as group, heads of 64, 128 or 256 columns, up to
/// 8 query heads a kv head.
bool kv4_decode_fits(const DeviceKvLayout& layout, int heads);
/// Whether it can make these codes: no gain, no transform, groups of 32, 64 or 128 columns that divide those
/// of a kv head's queries.
bool kv4_decode_makes_codes(const DeviceKvLayout& layout, int heads, const RowOptions& options,
                            const DeviceActivations& codes);
/// One token a row on the tensor cores; what does not fit is an Error.
void kv4_decode_attention(const DeviceKvLayout& layout, const uint8_t* pages, const KvRows& rows,
                          const KvAttention& attention, KvWorkspace& workspace, cudaStream_t stream,
                          const KvDecodeStep& step = {});

}  // namespace quatrain::ops
