// Numbers and tables as people read them.
#include "io/text.hpp"

#include <gtest/gtest.h>

#include <limits>

namespace xstage::io {
namespace {

TEST(Text, TimesHaveThreeDigitsAndAUnit) {
  EXPECT_EQ(format_time(0), "0 ns");
  EXPECT_EQ(format_time(557.4), "557 ns");
  EXPECT_EQ(format_time(999.6), "1.00 us");
  EXPECT_EQ(format_time(3630), "3.63 us");
  EXPECT_EQ(format_time(8000), "8 us");
  EXPECT_EQ(format_time(11627), "11.6 us");
  EXPECT_EQ(format_time(1.2e6), "1.2 ms");
  EXPECT_EQ(format_time(12e9), "12 s");
  EXPECT_EQ(format_time(std::numeric_limits<double>::infinity()), "unbounded");
}

TEST(Text, SizesArePowersOf1024) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(32768), "32 KiB");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(24000), "23.4 KiB");
  EXPECT_EQ(format_bytes(12.01 * 1024), "12.0 KiB");
  EXPECT_EQ(format_bytes(4.0 * 1024 * 1024), "4 MiB");
}

TEST(Text, RatesAndPercents) {
  EXPECT_EQ(format_rate(372.3), "372 GB/s");
  EXPECT_EQ(format_rate(52.46), "52.5 GB/s");
  EXPECT_EQ(format_percent(0.0012), "0.12 %");
  EXPECT_EQ(format_percent(0.035), "3.5 %");
  EXPECT_EQ(format_percent(1.37), "137 %");
  EXPECT_EQ(format_number(std::numeric_limits<double>::quiet_NaN()), "-");
}

TEST(TextTable, AlignsByWhatIsSeen) {
  TextTable table({"name", "value"}, {TextTable::Align::left});
  table.add({"\xc2\xb1", "1"});
  table.add({"long name", "23456789"});
  table.add({"short"});
  EXPECT_EQ(table.str(),
            "name          value\n"
            "\xc2\xb1                 1\n"
            "long name  23456789\n"
            "short\n");
}

}  // namespace
}  // namespace xstage::io
