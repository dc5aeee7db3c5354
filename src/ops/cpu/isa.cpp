#include "ops/cpu/isa.h"

#include <atomic>
#include <cstdlib>
#include <string>

#include "base/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace quatrain::ops {
namespace {

constexpr Isa kAll[] = {Isa::Generic, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni};

bool detect(Isa isa) {
  if (isa == Isa::Generic) return true;
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!avx2 || !f16c) return false;
  switch (isa) {
    case Isa::Avx2:
      return true;
    case Isa::AvxVnni:  // leaf 7.1, EAX bit 4; AVX state is the operating system's, seen by "avx2" above
      return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax & (1u << 4)) != 0;
    case Isa::Avx512Vnni:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
    case Isa::Generic:
      break;
  }
#endif
  return false;
}

std::string names_of_machine() {
  std::string names;
  for (const Isa isa : kAll)
    if (has_isa(isa)) names += (names.empty() ? "" : ", ") + std::string(name_of(isa));
  return names;
}

Isa choose() {
  if (const char* named = std::getenv("QUATRAIN_ISA"); named != nullptr && *named != '\0') {
    for (const Isa isa : kAll) {
      if (name_of(isa) != named) continue;
      require(has_isa(isa), "QUATRAIN_ISA: this machine lacks {}; it has {}", named, names_of_machine());
      return isa;
    }
    fail("QUATRAIN_ISA: {} is unknown; this machine has {}", named, names_of_machine());
  }
  Isa best = Isa::Generic;
  for (const Isa isa : kAll)
    if (has_isa(isa)) best = isa;
  return best;
}

std::atomic<Isa>& active() {
  static std::atomic<Isa> isa{choose()};
  return isa;
}

}  // namespace

Isa active_isa() {
  return active().load(std::memory_order_relaxed);
}

bool has_isa(Isa isa) {
  static const bool present[] = {detect(kAll[0]), detect(kAll[1]), detect(kAll[2]), detect(kAll[3])};
  return present[static_cast<int>(isa)];
}

std::string_view name_of(Isa isa) {
  switch (isa) {
    case Isa::Generic:
      return "generic";
    case Isa::Avx2:
      return "avx2";
    case Isa::AvxVnni:
      return "avxvnni";
    case Isa::Avx512Vnni:
      return "avx512vnni";
  }
  return "unknown";
}

void set_isa(Isa isa) {
  require(has_isa(isa), "set_isa: this machine lacks {}; it has {}", name_of(isa), names_of_machine());
  active().store(isa, std::memory_order_relaxed);
}

}  // namespace quatrain::ops
