#include "ops/cuda/device_activations.h"
#include "ops/cuda/gpu.h"

namespace quatrain::ops {

DeviceActivations::DeviceActivations(int64_t tokens, int64_t width, int64_t group)
    : tokens(tokens), capacity(tokens), width(width), group(group == 0 || group > width ? width : group) {
  require(tokens > 0 && width > 0, "GPU activations: {} tokens of {} values; both must be positive", tokens,
          width);
  groups = (width + this->group - 1) / this->group;
  stride = (width + 127) / 128 * 128;
  token_stride = (tokens + 127) / 128 * 128;
  codes = DeviceBuffer<int8_t>(static_cast<size_t>(capacity * stride));
  scale = DeviceBuffer<float>(static_cast<size_t>(groups * token_stride));
  zero = DeviceBuffer<int32_t>(static_cast<size_t>(groups * token_stride));
  if (gpu_kernels() == GpuKernels::Nibbles) make_room_for_nibbles();
}

void DeviceActivations::make_room_for_nibbles() {
  nibble_unit = groups > 1 && group < 128 ? static_cast<int>(group) : 128;
  nibbles = DeviceBuffer<uint32_t>(static_cast<size_t>(stride / 128 * token_stride * 16));
  nibble_zero = DeviceBuffer<int32_t>(static_cast<size_t>(stride / nibble_unit * token_stride));
}

}  // namespace quatrain::ops
