// Packed models that lie: shapes, types, parts and settings changed at random. Each is a model that runs, or
// an Error.
#include <gtest/gtest.h>

#include <cstring>

#include "base/rng.h"
#include "engine/engine.h"
#include "formats/convert.h"
#include "support.h"

namespace quatrain {
namespace {

class Mutation : public testing::TestWithParam<const char*> {};

// Names, numbers and structures that no writer means.
Json absurd_value(SplitMix64& rng) {
  static const std::vector<Json> kValues = {
      nullptr,       true,      0,          1,        -1,      3,           8,   64,     1 << 20,
      INT64_MAX,     INT64_MIN, UINT64_MAX, 1e300,    0.5,     "",          "8", "auto", {},
      Json::array(), {1, 2},    {{"a", 1}}, "re:(((", "re:.*", "re:[a-z]+$"};
  return kValues[rng.below(kValues.size())];
}

// One value of a tree, replaced, removed or doubled under another name.
void change_config(Json& json, SplitMix64& rng) {
  Json* at = &json;
  while (at->is_structured() && !at->empty()) {
    auto child = at->begin();
    std::advance(child, static_cast<std::ptrdiff_t>(rng.below(at->size())));
    if (child->is_structured() && !child->empty() && rng.below(4) != 0) {
      at = &*child;
    } else if (rng.below(5) == 0) {
      at->erase(child);
      return;
    } else {
      *child = absurd_value(rng);
      return;
    }
  }
}

// The same bytes as another matrix: the file is in order, its tensor is not.
void change_shape(RawTensor& tensor, SplitMix64& rng) {
  int64_t elements = 1;
  for (const int64_t size : tensor.shape) elements *= size;
  switch (rng.below(5)) {
    case 0:
      std::reverse(tensor.shape.begin(), tensor.shape.end());
      break;
    case 1:
      tensor.shape = {elements};
      break;
    case 2:
      tensor.shape.push_back(1);
      break;
    case 3:
      if (elements % 2 == 0) tensor.shape = {2, elements / 2};
      break;
    default:
      tensor.shape = {0, elements};
      tensor.bytes.clear();
  }
}

void change_tensors(std::map<std::string, RawTensor>& tensors, SplitMix64& rng) {
  auto entry = tensors.begin();
  std::advance(entry, static_cast<std::ptrdiff_t>(rng.below(tensors.size())));
  auto other = tensors.begin();
  std::advance(other, static_cast<std::ptrdiff_t>(rng.below(tensors.size())));
  RawTensor& tensor = entry->second;
  switch (rng.below(6)) {
    case 0:
      tensors.erase(entry);
      break;
    case 1:
      std::swap(tensor, other->second);
      break;
    case 2:
      change_shape(tensor, rng);
      break;
    case 3:  // another type of the same size
      if (tensor.type == "F16")
        tensor.type = "BF16";
      else if (tensor.type == "I32")
        tensor.type = "F32";
      else if (tensor.type == "F32")
        tensor.type = "I32";
      else if (tensor.type == "I8")
        tensor.type = "U8";
      break;
    case 4:
      for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(rng.below(256));
      break;
    default:  // a tensor under the name of another's part
      tensors[entry->first + (rng.below(2) ? "_zero_point" : ".g_idx")] = other->second;
  }
}

// A header that lies about where the tensors lie.
void change_header(const fs::path& file, SplitMix64& rng) {
  std::string bytes = read_file(file);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  for (int i = 0; i < 3; ++i) {
    const size_t at = 8 + rng.below(length);
    if (bytes[at] >= '0' && bytes[at] <= '9')
      bytes[at] = static_cast<char>('0' + rng.below(10));
    else if (rng.below(8) == 0)
      bytes[at] = static_cast<char>(rng.below(256));
  }
  write_file(file, bytes);
}

TEST_P(Mutation, IsAnErrorOrAModel) {
  const std::string name = GetParam();
  SplitMix64 rng(7);
  int models = 0, errors = 0;
  for (int i = 0; i < 120; ++i) {
    const auto kind = rng.below(3);
    const fs::path folder = changed_fixture(
        name, "mutated-" + name, [&](std::map<std::string, RawTensor>& tensors, Json& config) {
          if (kind == 0) change_config(rng.below(3) == 0 ? config : config["quantization_config"], rng);
          if (kind == 1) change_tensors(tensors, rng);
        });
    if (kind == 2) change_header(folder / "model-00001-of-00001.safetensors", rng);
    SCOPED_TRACE(fmt::format("{}, change {}", name, i));
    try {
      convert_format(folder, folder / "a", {.to = "artifact"});
      const auto engine = Engine::load(folder / "a", {.threads = 1});
      const std::vector<int32_t> ids{1, 7};
      const BatchItem item{engine->new_sequence(), ids, BatchItem::Logits::Last};
      engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
      ++models;
    } catch (const Error& error) {
      EXPECT_GT(std::string_view(error.what()).size(), 20u);
      ++errors;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "not an Error: " << error.what();
    }
  }
  EXPECT_GT(models, 0);
  EXPECT_GT(errors, 20);
}

INSTANTIATE_TEST_SUITE_P(All, Mutation,
                         testing::Values("gptq-sym", "gptq-asym-order", "gptq-8bit-rows", "gptq-v2-asym",
                                         "awq", "compressed-w4a16", "compressed-w4a16-asym",
                                         "compressed-w8a8"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace quatrain
