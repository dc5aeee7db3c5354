#include "ops/activation_quantize.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <string>
#include <vector>

#include "base/error.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

// Rows with large offsets, halves (ties), zeros, subnormals and extremes.
std::vector<float> awkward_values(int64_t count, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    switch (random.below(8)) {
      case 0:
        values[i] = static_cast<float>(static_cast<int64_t>(random.below(31)) - 15) * 0.5f;
        break;
      case 1:
        values[i] = random.sign() > 0 ? 0.0f : -0.0f;
        break;
      case 2:
        values[i] = static_cast<float>(random.normal() * 1e-41);
        break;
      case 3:
        values[i] = static_cast<float>(1000 + random.normal());
        break;
      default:
        values[i] = static_cast<float>(random.normal());
    }
  }
  return values;
}

TEST(ActivationQuantize, EqualsTheDefinitionOnEveryIsa) {
  ThreadPool pool(2);
  for (const int64_t width : {1, 7, 8, 15, 16, 17, 63, 64, 65, 130, 576, 1000})
    for (const int64_t group : {0, 1, 5, 16, 32, 64, 96, 128, 256, 300})
      for (const int bits : {4, 8})
        for (const bool symmetric : {false, true}) {
          SCOPED_TRACE(
              fmt::format("width {}, group {}, bits {}, symmetric {}", width, group, bits, symmetric));
          const int64_t tokens = 3, stride = width + 5;
          const ActivationPolicy policy{bits, group, symmetric};
          const std::vector<float> x =
              awkward_values(tokens * stride, static_cast<uint64_t>(width * 1000 + group));
          each_isa([&] {
            QuantizedActivations out;
            quantize_activations(x.data(), tokens, stride, width, policy, "test", pool, out);
            const int64_t size = group == 0 ? width : std::min(group, width);
            ASSERT_EQ(out.group, size);
            ASSERT_EQ(out.groups, (width + size - 1) / size);
            ASSERT_EQ(out.stride % 64, 0);
            ASSERT_EQ(out.bits, bits);
            for (int64_t t = 0; t < tokens; ++t) {
              for (int64_t g = 0; g < out.groups; ++g) {
                const int64_t first = g * size, count = std::min(size, width - first);
                const float* values = x.data() + t * stride + first;
                const QuantizedGroup wanted = quantize_group(values, count, bits, symmetric, size);
                ASSERT_EQ(out.scale[t * out.groups + g], wanted.scale);
                ASSERT_EQ(out.zero[t * out.groups + g], wanted.zero);
                for (int64_t i = 0; i < count; ++i)
                  ASSERT_EQ(out.codes[t * out.stride + first + i], quantize_value(values[i], wanted, bits))
                      << values[i];
              }
              for (int64_t i = width; i < out.stride; ++i) ASSERT_EQ(out.codes[t * out.stride + i], 0);
            }
          });
        }
}

TEST(ActivationQuantize, ExtremesOfFp32) {
  ThreadPool pool(1);
  const std::vector<float> x = {FLT_MAX, -FLT_MAX, FLT_MIN, FLT_TRUE_MIN, 0, -0.0f, 1, -1};
  each_isa([&] {
    for (const int64_t group : {1, 2, 4, 8}) {
      QuantizedActivations out;
      quantize_activations(x.data(), 1, 8, 8, {8, group, false}, "test", pool, out);
      for (int64_t g = 0; g < out.groups; ++g) {
        const QuantizedGroup wanted = quantize_group(x.data() + g * group, group, 8, false, group);
        EXPECT_EQ(out.scale[g], wanted.scale);
        EXPECT_EQ(out.zero[g], wanted.zero);
        EXPECT_TRUE(std::isfinite(out.scale[g]));
      }
    }
  });
}

TEST(ActivationQuantize, NotFiniteNamesSiteTokenAndChannel) {
  ThreadPool pool(2);
  each_isa([&] {
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY})
      for (const int64_t channel : {0, 1, 31, 64, 69}) {
        std::vector<float> x(5 * 70, 1.0f);
        x[3 * 70 + channel] = bad;
        QuantizedActivations out;
        try {
          quantize_activations(x.data(), 5, 70, 70, {4, 32, false}, "layer 7 down_proj", pool, out);
          FAIL() << bad << " at " << channel;
        } catch (const Error& error) {
          const std::string text = error.what();
          EXPECT_NE(text.find("layer 7 down_proj"), std::string::npos) << text;
          EXPECT_NE(text.find("token 3"), std::string::npos) << text;
          EXPECT_NE(text.find(fmt::format("channel {}", channel)), std::string::npos) << text;
        }
      }
  });
}

TEST(ActivationQuantize, CountsTokensOfAPartFromItsFirst) {
  const std::vector<float> x = {1, 2, NAN, 4};
  QuantizedActivations out;
  shape_activations(3, 4, {8, 0, false}, out);
  out.first_token = 128;
  try {
    quantize_activation_columns(x.data(), 2, 0, 4, {8, 0, false}, "layer 1 down_proj", out);
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("token 130 is nan at channel 2"), std::string::npos)
        << error.what();
  }
}

TEST(ActivationQuantize, RefusesOtherBits) {
  ThreadPool pool(1);
  QuantizedActivations out;
  const float x[8] = {};
  EXPECT_THROW(quantize_activations(x, 1, 8, 8, {16, 0, false}, "test", pool, out), Error);
  EXPECT_THROW(quantize_activations(x, 1, 8, 0, {8, 0, false}, "test", pool, out), Error);
  EXPECT_THROW(quantize_activations(x, 1, 8, 8, {8, -3, false}, "test", pool, out), Error);
}

}  // namespace
}  // namespace quatrain::ops
