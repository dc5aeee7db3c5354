// GPTQ: int32 words of codes along the inputs, [K bits/32, N]; zeros along the outputs, [G, N bits/32], of
// which version 1 stores one less; scales [G, N] in FP16; the group of every input.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/half.h"
#include "base/log.h"
#include "formats/export.h"
#include "model/convert.h"

namespace quatrain {
namespace {

constexpr int64_t kUnit = 32;  // readers want both sizes in multiples of it

template <typename T>
std::span<const std::byte> bytes_of(const std::vector<T>& values) {
  return std::as_bytes(std::span<const T>(values));
}

void write_matrix(SafetensorsWriter& writer, const std::string& name, const StoredCodes& codes,
                  bool version1) {
  const int64_t n = codes.rows, k = codes.columns, per_word = 32 / codes.bits, groups = codes.groups();
  const int middle = 1 << (codes.bits - 1);
  std::vector<uint32_t> words(static_cast<size_t>(k / per_word * n), 0);
  for (int64_t row = 0; row < n; ++row)
    for (int64_t column = 0; column < k; ++column)
      words[static_cast<size_t>(column / per_word * n + row)] |=
          static_cast<uint32_t>(codes.codes[static_cast<size_t>(row * k + column)] + middle)
          << (codes.bits * (column % per_word));
  uint32_t zero = 0;
  for (int64_t j = 0; j < per_word; ++j)
    zero |= static_cast<uint32_t>(middle - (version1 ? 1 : 0)) << (codes.bits * j);
  const std::vector<uint32_t> zeros(static_cast<size_t>(groups * n / per_word), zero);
  std::vector<uint16_t> scales(static_cast<size_t>(groups * n));
  for (int64_t row = 0; row < n; ++row)
    for (int64_t g = 0; g < groups; ++g) {
      const float scale = codes.scale[static_cast<size_t>(row * groups + g)];
      const uint16_t half = float_to_fp16(scale);
      require(std::isfinite(fp16_to_float(half)) && (scale == 0 || std::fabs(scale) >= 0x1p-14f),
              "{}: row {} has the scale {}, which FP16 does not hold to its 11 bits", name, row, scale);
      scales[static_cast<size_t>(g * n + row)] = half;
    }
  std::vector<int32_t> order(static_cast<size_t>(k));
  for (int64_t column = 0; column < k; ++column)
    order[static_cast<size_t>(column)] = static_cast<int32_t>(codes.group == 0 ? 0 : column / codes.group);
  writer.add(name + ".qweight", "I32", {k / per_word, n}, bytes_of(words));
  writer.add(name + ".qzeros", "I32", {groups, n / per_word}, bytes_of(zeros));
  writer.add(name + ".scales", "F16", {groups, n}, bytes_of(scales));
  writer.add(name + ".g_idx", "I32", {k}, bytes_of(order));
}

// One width and one group for the whole file. Matrices that cannot have them become 16-bit, or are refused.
WeightScheme one_scheme(const Checkpoint& model, const std::vector<StoredTensor>& layout,
                        std::vector<WeightScheme>& schemes, bool fold) {
  int64_t wide = 0, narrow = 0, group = 0;
  for (const WeightScheme& scheme : schemes) {
    if (scheme.bits == 16) continue;
    (scheme.bits == 8 ? wide : narrow) += 1;
    if (scheme.group > 0) group = group == 0 ? scheme.group : std::min(group, scheme.group);
  }
  const int bits = wide > narrow ? 8 : 4;
  std::vector<std::string> odd;
  for (size_t i = 0; i < schemes.size(); ++i) {
    if (schemes[i].bits == 16) continue;
    const int64_t n = layout[i].shape[0], k = layout[i].shape[1];
    const int64_t width = schemes[i].group == 0 ? k : schemes[i].group;
    if (schemes[i].bits == bits && n % kUnit == 0 && k % kUnit == 0 &&
        (group == 0 || (width % group == 0 && k % group == 0)))
      continue;
    odd.push_back(
        fmt::format("{} ({} bits, {} x {}, groups of {})", layout[i].name, schemes[i].bits, n, k, width));
    schemes[i] = WeightScheme{};
  }
  constexpr size_t kListed = 5;
  const std::string names = fmt::format(
      "{}{}", fmt::join(odd.begin(), odd.begin() + static_cast<long>(std::min(odd.size(), kListed)), ", "),
      odd.size() > kListed ? fmt::format(" and {} more", odd.size() - kListed) : "");
  require(odd.empty() || fold,
          "{}: GPTQ has one width and group for all matrices, here {} bits in groups of {}, and sizes that "
          "divide by 32; --fold writes in 16 bits: {}",
          model.path().string(), bits, group == 0 ? "a row" : std::to_string(group), names);
  if (!odd.empty()) log_warn("{} matrices are 16-bit: {}", odd.size(), names);
  require(std::ranges::any_of(schemes, [](const WeightScheme& scheme) { return scheme.bits < 16; }),
          "{}: no matrix is left that GPTQ can hold", model.path().string());
  return {bits, group, {}};
}

std::string escaped(const std::string& name) {
  std::string out;
  for (const char c : name) out += c == '.' ? std::string("\\.") : std::string(1, c);
  return out;
}

}  // namespace

void export_gptq(const Checkpoint& model, const fs::path& output, const FormatOptions& options) {
  const bool version1 = options.to == "gptq";
  const std::vector<StoredTensor> layout = hub_layout(model.config());
  std::vector<WeightScheme> schemes = plan_schemes(model, layout);
  if (std::ranges::any_of(schemes, [](const WeightScheme& scheme) { return scheme.activation.bits < 16; }))
    log_warn("GPTQ says nothing of activations: readers compute with 16-bit ones");
  const WeightScheme scheme = one_scheme(model, layout, schemes, options.fold);
  Json config = {{"quant_method", "gptq"},
                 {"bits", scheme.bits},
                 {"group_size", scheme.group == 0 ? -1 : scheme.group},
                 {"sym", true},
                 {"desc_act", false},
                 {"static_groups", false},
                 {"true_sequential", true},
                 {"lm_head", false},
                 {"damp_percent", 0.01},
                 {"checkpoint_format", version1 ? "gptq" : "gptq_v2"},
                 {"meta", {{"quantizer", {"quatrain"}}}}};
  for (size_t i = 0; i < layout.size(); ++i) {
    const bool linear = layout[i].shape.size() == 2 && !layout[i].plain &&
                        layout[i].name.find(".layers.") != std::string::npos;
    if (linear && schemes[i].bits == 16)
      config["dynamic"]["-:^" + escaped(layout[i].name.substr(0, layout[i].name.rfind('.'))) + "$"] =
          Json::object();
  }
  write_packed_hub(
      model, output, options.dtype, layout, schemes, config,
      [&](SafetensorsWriter& writer, const std::string& name, StoredCodes codes) {
        write_matrix(writer, name, scheme.group == 0 ? codes : in_groups_of(std::move(codes), scheme.group),
                     version1);
      },
      [&](const fs::path& directory) {
        write_file(directory / "quantize_config.json", config.dump(2) + "\n");
      });
}

}  // namespace quatrain
