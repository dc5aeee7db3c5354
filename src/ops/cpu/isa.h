// Which instruction set the operators use: the best that the machine has, or what QUATRAIN_ISA names.
#pragma once

#include <string_view>

namespace quatrain::ops {

enum class Isa { Generic, Avx2, AvxVnni, Avx512Vnni };

/// Chosen once. QUATRAIN_ISA = generic | avx2 | avxvnni | avx512vnni overrides; an unknown name, or a set
/// that the machine lacks, is an Error that lists what it has.
Isa active_isa();
/// Whether this machine can run `isa`.
bool has_isa(Isa isa);
std::string_view name_of(Isa isa);
/// For tests and benchmarks: what active_isa() returns from now on.
void set_isa(Isa isa);

}  // namespace quatrain::ops
