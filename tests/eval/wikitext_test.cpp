#include "eval/wikitext.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "text/corpus.h"

namespace quatrain {
namespace {

TEST(Wikitext, SplitsAtPageHeadingsOnly) {
  const auto pages = wikitext_pages(" \n = One = \n \n Text a . \n = = Section = = \n b \n = Two = \n c \n");
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(pages[0], " = One = \n \n Text a . \n = = Section = = \n b ");
  EXPECT_EQ(pages[1], " = Two = \n c \n");
}

TEST(Wikitext, ATextWithoutHeadingsIsOnePage) {
  EXPECT_EQ(wikitext_pages("a\nb").size(), 1u);
  EXPECT_TRUE(wikitext_pages(" \n \n").empty());
}

// Expected texts come from lm-eval's published rules, applied in Python.
TEST(Wikitext, Detokenizes) {
  EXPECT_EQ(wikitext_detokenize("a @-@ b , 1 @,@ 000 @.@ 5 ( x ) [ y ] \" q \""),
            "a-b, 1,000.5 (x) [y] \"q\"");
  EXPECT_EQ(wikitext_detokenize(" = = Title = = \n the dogs ' tails 's N years"),
            " == Title ==\nthe dogs'tails's 1 years");
  EXPECT_EQ(wikitext_detokenize("25 \u00b0 C : yes ; no ! why ?"), "25\u00b0C: yes; no! why ?");
}

// 62 pages, their words and the digest of their detokenised text: computed by lm-eval's rules in Python.
TEST(Wikitext, WholeTestSplit) {
  const auto pages = wikitext_pages(load_corpus("wikitext2-test").text);
  ASSERT_EQ(pages.size(), 62u);
  int64_t words = 0;
  Sha256 digest;
  for (const std::string& page : pages) {
    words += count_words(page);
    const std::string text = wikitext_detokenize(page);
    digest.update(text.data(), text.size());
  }
  EXPECT_EQ(words, 241335);
  EXPECT_EQ(digest.hex(), "d6535ca809061590d5e672ac43d8d2d5e1fb500c3005768f6050dcc007786165");
}

TEST(Wikitext, CountsWordsAsPythonsSplitDoes) {
  EXPECT_EQ(count_words("a b  c"), 3);
  EXPECT_EQ(count_words(" a b\n"), 4);  // the empty pieces at both ends count
  EXPECT_EQ(count_words("a\u00a0b\u2003c"), 3);
  EXPECT_EQ(count_words(""), 1);
}

}  // namespace
}  // namespace quatrain
