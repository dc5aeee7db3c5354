#include "engine/kernel_check.h"

#include <gtest/gtest.h>

#include "engine/cpu_engine.h"
#include "models_for_tests.h"

namespace quatrain {
namespace {

TEST(KernelCheck, SaysHowFarAndWhereAndKeepsTheFirstResult) {
  KernelCheck check;
  std::vector<float> out = {3, 4};
  const auto step = [&] {
    EXPECT_EQ(ops::active_isa(), ops::Isa::Generic);
    out = {3, 5};
  };
  const ops::Isa isa = ops::active_isa();
  check.compare("MLP", 7, out.data(), 2, step);
  EXPECT_EQ(out, std::vector<float>({3, 4})) << "off: the step does not run again";
  check.on = true;
  check.compare("MLP", 7, out.data(), 2, step);
  EXPECT_EQ(ops::active_isa(), isa);
  EXPECT_EQ(out, std::vector<float>({3, 4}));
  EXPECT_DOUBLE_EQ(check.deviation, std::sqrt(1.0 / 34));
  EXPECT_EQ(check.where, "layer 7 MLP");
  check.compare("head", -1, out.data(), 2, [&] { out = {3, 4}; });
  EXPECT_EQ(check.where, "layer 7 MLP") << "a smaller deviation replaces nothing";
}

// Every half layer, norm and head of an artifact: its kernels on this machine are the generic ones but for
// rounding and for the codes that rounding moves, and watching changes no result.
TEST(KernelCheck, FindsTheKernelsOfThisMachineRight) {
  const MemoryCheckpoint model(small_config());
  TemporaryFolder folder;
  write_artifact(model, test_quantization(), folder.path() / "artifact");
  const auto engine = make_cpu_engine(artifact_source(folder.path() / "artifact"), {.threads = 2});
  const auto ids = random_ids(70, model.config().vocabulary, 3);
  std::vector<float> plain, watched;
  for (std::vector<float>* logits : {&plain, &watched}) {
    engine->kernel_check()->on = logits == &watched;
    const int64_t sequence = engine->new_sequence();
    const BatchItem item{sequence, ids, BatchItem::Logits::Last};
    engine->forward({&item, 1}, [&](int64_t, int64_t, std::span<const float> row) {
      logits->assign(row.begin(), row.end());
    });
    engine->free_sequence(sequence);
  }
  EXPECT_EQ(plain, watched);
  EXPECT_LT(engine->kernel_check()->deviation, 0.1);
  EXPECT_EQ(engine->kernel_check()->deviation > 0, ops::active_isa() != ops::Isa::Generic);
}

TEST(OperatorClock, BooksTheTimeOfAPass) {
  const MemoryCheckpoint model(small_config());
  TemporaryFolder folder;
  write_artifact(model, test_quantization(), folder.path() / "artifact");
  const auto engine = make_cpu_engine(artifact_source(folder.path() / "artifact"), {.threads = 1});
  engine->clock()->clear();
  const int32_t token = 1;
  const BatchItem item{engine->new_sequence(), {&token, 1}, BatchItem::Logits::Last};
  engine->forward({&item, 1}, [](int64_t, int64_t, std::span<const float>) {});
  for (const Operator op : {Operator::Embedding, Operator::Norm, Operator::Quantize, Operator::Qkv,
                            Operator::Rope, Operator::KvAppend, Operator::Attention, Operator::Output,
                            Operator::GateUp, Operator::Activation, Operator::Down, Operator::Head})
    EXPECT_GT(engine->clock()->seconds(op), 0) << name_of(op);
  EXPECT_EQ(engine->clock()->seconds(Operator::DownTransform), 0);
  EXPECT_EQ(engine->clock()->seconds(Operator::Experts), 0);
  const EngineCosts costs = engine->costs();
  EXPECT_EQ(costs.multiplies, 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96));
  EXPECT_EQ(costs.head_multiplies, 97 * 64);
  EXPECT_GT(costs.kv_bytes, 0);
  EXPECT_EQ(costs.weight_bytes, engine->weight_bytes_per_token());
}

}  // namespace
}  // namespace quatrain
