// The gate of an MLP: y = activation(gate) * up.
#pragma once

#include <cstdint>

namespace quatrain::ops {

enum class GateFunction { Silu, GeluTanh };

/// y[i] = f(gate[i]) * up[i] for `count` values; y may be gate or up.
/// Silu: g / (1 + e^-g). GeluTanh: g / 2 * (1 + tanh(u)) = g / (1 + e^-2u), u = sqrt(2/pi) (g + 0.044715
/// g^3).
void gated_activation(GateFunction function, const float* gate, const float* up, int64_t count, float* y);

}  // namespace quatrain::ops
