#include "ops/cpu/isa.h"

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "each_isa.h"

namespace quatrain::ops {
namespace {

TEST(Isa, NamesAreThoseOfTheEnvironmentVariable) {
  EXPECT_EQ(name_of(Isa::Generic), "generic");
  EXPECT_EQ(name_of(Isa::Avx2), "avx2");
  EXPECT_EQ(name_of(Isa::AvxVnni), "avxvnni");
  EXPECT_EQ(name_of(Isa::Avx512Vnni), "avx512vnni");
}

TEST(Isa, SetIsaHoldsAndRefusesWhatTheMachineLacks) {
  EXPECT_TRUE(has_isa(Isa::Generic));
  EXPECT_TRUE(has_isa(active_isa()));
  each_isa([] {});
  const Isa before = active_isa();
  for (const Isa isa : {Isa::Generic, Isa::Avx2, Isa::AvxVnni, Isa::Avx512Vnni}) {
    if (has_isa(isa)) {
      set_isa(isa);
      EXPECT_EQ(active_isa(), isa);
    } else {
      EXPECT_THROW(set_isa(isa), Error);
    }
  }
  set_isa(before);
}

TEST(IsaDeathTest, EnvironmentOverrides) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fresh process: the choice is made once in each
  const auto choice = [](const char* name) {
    setenv("QUATRAIN_ISA", name, 1);
    try {
      const std::string_view active = name_of(active_isa());
      fprintf(stderr, "chosen %.*s", static_cast<int>(active.size()), active.data());
    } catch (const Error& error) {
      fprintf(stderr, "%s", error.what());
    }
    exit(0);
  };
  EXPECT_EXIT(choice("generic"), testing::ExitedWithCode(0), "chosen generic");
  EXPECT_EXIT(choice("mmx"), testing::ExitedWithCode(0), "QUATRAIN_ISA: mmx is unknown.*generic");
}

}  // namespace
}  // namespace quatrain::ops
