#include "base/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "base/sha256_block.h"

namespace quatrain {
namespace {

// FIPS 180-4 examples (NIST's test vectors).
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesOfAnySizeGiveTheSameDigest) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31);
  for (const size_t size : {0, 1, 55, 56, 57, 63, 64, 65, 119, 120, 128, 1000}) {
    const std::string whole = sha256_hex(std::string_view(text).substr(0, size));
    for (const size_t piece : {1, 3, 63, 64, 65}) {
      Sha256 hash;
      for (size_t at = 0; at < size; at += piece) hash.update(text.data() + at, std::min(piece, size - at));
      EXPECT_EQ(hash.hex(), whole) << size << " bytes in pieces of " << piece;
    }
  }
}

TEST(Sha256, InstructionsGiveWhatPlainCodeGives) {
  std::array<uint32_t, 8> state{1, 2, 3, 4, 5, 6, 7, 0x80000000}, plain = state;
  std::array<uint8_t, 65> data{};  // blocks need no alignment
  for (int i = 0; i < 100; ++i) {
    for (size_t j = 0; j < data.size(); ++j) data[j] = static_cast<uint8_t>(state[j % 8] >> (j % 29));
    sha256_block(state.data(), data.data() + i % 2);
    sha256_block_plain(plain.data(), data.data() + i % 2);
    ASSERT_EQ(state, plain) << i;
  }
}

}  // namespace
}  // namespace quatrain
