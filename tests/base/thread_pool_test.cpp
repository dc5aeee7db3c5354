#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "base/error.h"

namespace quatrain {
namespace {

TEST(ThreadPool, CoversEveryItemOnceForAnyGrain) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int64_t count : {0, 1, 2, 5, 63, 1000})
      for (const int64_t grain : {-3, 0, 1, 2, 64, 5000}) {
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        pool.parallel_for(count, grain, [&](int64_t begin, int64_t end, int thread) {
          EXPECT_GE(thread, 0);
          EXPECT_LT(thread, threads);
          for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
        });
        for (const auto& times : seen) ASSERT_EQ(times, 1) << threads << " " << count << " " << grain;
      }
  }
}

// Plain (not atomic) data written in one loop and read in the next: ThreadSanitizer sees a missing ordering.
TEST(ThreadPool, LoopsAreOrderedOneAfterTheOther) {
  ThreadPool pool(4);
  std::vector<int64_t> a(257, 0), b(257, 0);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool.parallel_for(257, 3, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) a[static_cast<size_t>(i)] = b[static_cast<size_t>(256 - i)] + 1;
    });
    pool.parallel_for(257, 5, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) b[static_cast<size_t>(i)] = a[static_cast<size_t>(256 - i)];
    });
    ASSERT_EQ(b[static_cast<size_t>(round % 257)], round);
  }
}

TEST(ThreadPool, ThreadNumbersDoNotOverlap) {
  ThreadPool pool(4);
  std::vector<int64_t> sums(4, 0);  // one plain counter a thread
  for (int round = 0; round < 200; ++round)
    pool.parallel_for(100, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) sums[static_cast<size_t>(thread)] += i;
    });
  int64_t total = 0;
  for (const int64_t sum : sums) total += sum;
  EXPECT_EQ(total, 200 * 99 * 50);
}

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> calls{0};
    pool.parallel_for(9, 1, [&](int64_t, int64_t, int) { ++calls; });
    EXPECT_EQ(calls, 9);
    std::this_thread::sleep_for(std::chrono::microseconds(round * 200));  // before, at and past the spinning
  }
}

TEST(ThreadPool, RethrowsAndStaysUsable) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> calls{0};
    try {
      pool.parallel_for(1000, 1, [&](int64_t begin, int64_t, int) {
        ++calls;
        if (begin == 10) fail("item {}", begin);
      });
      FAIL() << "no exception";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "item 10");
    }
    EXPECT_GE(calls, 1);
    calls = 0;
    pool.parallel_for(8, 1, [&](int64_t, int64_t, int) { ++calls; });
    EXPECT_EQ(calls, 8);
  }
  EXPECT_THROW(pool.parallel_for(1, 1, [](int64_t, int64_t, int) { fail("alone"); }), Error);
}

TEST(ThreadPool, NestedLoopsRunOnTheirThread) {
  ThreadPool pool(3);
  std::atomic<int64_t> inner{0};
  pool.parallel_for(16, 1, [&](int64_t, int64_t, int outer_thread) {
    pool.parallel_for(10, 1, [&](int64_t begin, int64_t end, int thread) {
      EXPECT_EQ(thread, outer_thread);
      inner += end - begin;
    });
  });
  EXPECT_EQ(inner, 160);
}

TEST(ThreadPool, CallersTakeTurns) {
  ThreadPool pool(3);
  int64_t plain = 0;  // only ever touched by the one running loop's chunk
  const auto caller = [&] {
    for (int round = 0; round < 300; ++round) {
      std::atomic<int64_t> sum{0};
      pool.parallel_for(20, 1, [&](int64_t begin, int64_t, int) {
        sum += begin;
        if (begin == 7) ++plain;
      });
      EXPECT_EQ(sum, 190);
    }
  };
  std::thread first(caller), second(caller);
  first.join();
  second.join();
  EXPECT_EQ(plain, 600);
}

TEST(ThreadPool, RefusesBadCounts) {
  EXPECT_THROW(ThreadPool(-1), Error);
  EXPECT_THROW(ThreadPool(1025), Error);
  EXPECT_THROW(ThreadPool(10000), Error);
  EXPECT_EQ(ThreadPool(0).threads(), available_cores());
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace quatrain
