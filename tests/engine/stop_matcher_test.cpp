#include "engine/stop_matcher.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace quatrain {
namespace {

// What comes out of a text that arrives in pieces of `piece` bytes, and whether a stop text ended it.
std::pair<std::string, bool> passed(std::vector<std::string> stops, std::string_view text, size_t piece) {
  StopMatcher matcher(std::move(stops));
  std::string out;
  for (size_t at = 0; at < text.size(); at += piece) out += matcher.push(text.substr(at, piece));
  out += matcher.finish();
  return {out, matcher.matched()};
}

TEST(StopMatcher, EndsAtTheEarliestMatchHoweverTheTextArrives) {
  for (const size_t piece : {1, 2, 3, 5, 100}) {
    EXPECT_EQ(passed({"END"}, "some text END and more", piece), std::pair(std::string("some text "), true));
    EXPECT_EQ(passed({"END"}, "ENEND", piece), std::pair(std::string("EN"), true));
    EXPECT_EQ(passed({"aab"}, "aaaab", piece), std::pair(std::string("aa"), true));
    EXPECT_EQ(passed({"world", "lo w"}, "hello world", piece), std::pair(std::string("hel"), true));
    EXPECT_EQ(passed({"\n\n", "User:"}, "one\ntwo\n\nUser:", piece),
              std::pair(std::string("one\ntwo"), true));
    EXPECT_EQ(passed({"END"}, "no match EN", piece), std::pair(std::string("no match EN"), false));
    EXPECT_EQ(passed({}, "anything", piece), std::pair(std::string("anything"), false));
    EXPECT_EQ(passed({"x"}, "x", piece), std::pair(std::string(), true));
  }
}

TEST(StopMatcher, HoldsBackOnlyWhatMayBeginAStopText) {
  StopMatcher matcher({"</s>", "<|end|>"});
  EXPECT_EQ(matcher.push("a <"), "a ");
  EXPECT_EQ(matcher.push("b> </"), "<b> ");
  EXPECT_EQ(matcher.push("s"), "");
  EXPECT_EQ(matcher.push("x"), "</sx");
  EXPECT_EQ(matcher.push("<|en"), "");
  EXPECT_EQ(matcher.push("d|>tail"), "");
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.push("more"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, RefusesAnEmptyText) {
  EXPECT_THROW(StopMatcher({"a", ""}), Error);
}

}  // namespace
}  // namespace quatrain
