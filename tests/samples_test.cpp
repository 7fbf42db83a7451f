#include "xstage/samples.hpp"

#include <gtest/gtest.h>

#include "xstage/error.hpp"

namespace xstage {
namespace {

TEST(Samples, StoreKindNamesRoundTrip) {
  for (int i = 0; i < kNumStoreKinds; ++i) {
    const auto kind = static_cast<StoreKind>(i);
    EXPECT_EQ(parse_store_kind(to_string(kind)), kind);
  }
}

TEST(Samples, UnknownWordNamesTheLegalOnes) {
  try {
    (void)parse_store_kind("st.v3");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), ErrorCategory::usage);
    EXPECT_NE(std::string(error.what()).find("register16"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("st.v3"), std::string::npos);
  }
}

TEST(Samples, MissingIsNotZero) {
  EXPECT_FALSE(measured(Sample{}.issue_ns));
  EXPECT_TRUE(measured(0.0));
}

}  // namespace
}  // namespace xstage
