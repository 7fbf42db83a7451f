// Sample files, link profiles, hashes, writing: round trips and every kind of bad input.
#include "xstage/files.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <sstream>

#include "temporary_folder.hpp"
#include "xstage/error.hpp"

namespace xstage {
namespace {

namespace fs = std::filesystem;
using test::slurp;
using test::TemporaryFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kHeader = "experiment,kind,producers,bytes,gap_ns,issue_ns,period_ns\n";

template <typename Action>
std::string message_of(Action action, ErrorCategory category) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.category(), category) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

std::string samples_problem(const std::string& text) {
  return message_of([&] { (void)parse_samples(text, "s.csv"); }, ErrorCategory::bad_file);
}

std::string link_problem(const std::string& text) {
  return message_of([&] { (void)parse_link(text, "l.json"); }, ErrorCategory::bad_file);
}

LinkProfile make_profile() {
  LinkProfile profile;
  profile.name = "made-up";
  profile.link = "NVLink 4, 18 links";
  profile.source = {Endpoint::Type::gpu, "GPU \"A\"", "GPU-0123", 132, 1980.5};
  profile.destination = {Endpoint::Type::host_memory, "pinned host memory", "", 0, 0};
  profile.provenance.date = "2026-11-30T12:00:00Z";
  profile.provenance.note = "two lines\nand an umlaut: \xc3\xbc";
  profile.samples_file = "made-up.csv";
  KindFit fit;
  fit.params.kind = StoreKind::bulk;
  fit.params.issue_curve = {{1024, 193.125}, {32768, 752}};
  fit.params.injection_rate = 50.1;
  fit.params.drain_rate = 1.0 / 3.0;
  fit.drain_rate_interval = Interval{0.3, 0.4};
  fit.params.capacity_slowest_bytes = std::numeric_limits<double>::infinity();
  fit.params.share_spread = 0.25;
  fit.params.visible_latency_ns = 1200;
  fit.capacity_at_k = {{16, 7, CapacityEstimate{100.5, {90, 110}}, {}, {}, {}, 0.4}};
  fit.residuals = {40, 0.01, 0.1, 0.2, "4 KiB, no gap"};
  fit.held_out = HeldOut{};
  fit.held_out->burst_gap = {10, 0.001, 0.03, 0.05, "worst"};
  fit.held_out->near_onset_share = 0.375;
  fit.unidentified = {{"capacity_mean_bytes", "no isolated burst exceeds the capacity"}};
  fit.num_samples = 97;
  profile.kinds = {fit};
  profile.measurements = {{"fence", "ns", 1100, Interval{1000, 1200}},
                          {"copy", "B/ns", 55, std::nullopt}};
  return profile;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << "'" << from << "' is not in the text";
  if (at != std::string::npos) text.replace(at, from.size(), to);
  return text;
}

// ---- hash ----

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// ---- samples ----

TEST(SampleFile, ReadsThePlainFormat) {
  const auto file = parse_samples(std::string(kHeader) +
                                      "isolated,register16,132,32768,,5249,\n"
                                      "periodic,bulk,132,32768,8000,3630,11630\n",
                                  "s.csv");
  ASSERT_EQ(file.samples.size(), 2u);
  EXPECT_EQ(file.samples[0].experiment, Experiment::isolated);
  EXPECT_EQ(file.samples[0].num_producers, 132);
  EXPECT_EQ(file.samples[0].issue_ns, 5249);
  EXPECT_FALSE(measured(file.samples[0].gap_ns));
  EXPECT_EQ(file.samples[1].kind, StoreKind::bulk);
  EXPECT_EQ(file.samples[1].period_ns, 11630);
  EXPECT_THAT(file.warnings, IsEmpty());
}

TEST(SampleFile, ReadsWhatSpreadsheetsWrite) {
  const auto file = parse_samples(
      "\xef\xbb\xbf"
      "\"experiment\",kind, producers ,bytes,gap_ns,issue_ns,period_ns\r\n"
      "\r\n"
      "isolated,\"bulk\",4,1e3,,12.5,\r\n"
      "isolated,bulk,4,2048,,13,",
      "s.csv");
  ASSERT_EQ(file.samples.size(), 2u);
  EXPECT_EQ(file.samples[0].bytes, 1000);
  EXPECT_EQ(file.samples[0].issue_ns, 12.5);
}

TEST(SampleFile, FillsTheOneOfThreeThatIsMissing) {
  const auto file = parse_samples(std::string(kHeader) +
                                      "periodic,bulk,1,1024,,100,1000\n"
                                      "periodic,bulk,1,1024,900,,1000\n"
                                      "periodic,bulk,1,1024,900,100,\n",
                                  "s.csv");
  for (const auto& sample : file.samples) {
    EXPECT_EQ(sample.gap_ns, 900);
    EXPECT_EQ(sample.issue_ns, 100);
    EXPECT_EQ(sample.period_ns, 1000);
  }
}

TEST(SampleFile, RoundTripKeepsEverything) {
  SampleFile file;
  file.name = "trip";
  file.link = "NVLink";
  file.source = {Endpoint::Type::gpu, "NVIDIA H200", "GPU-1", 132, 1979.6};
  file.destination = {Endpoint::Type::local_memory, "local", "", 0, 0};
  file.provenance.note = "measured, with commas: and colons";
  file.provenance.date = "2026-11-30";
  Sample full;
  full.kind = StoreKind::tensor;
  full.experiment = Experiment::periodic;
  full.num_producers = 66;
  full.bytes = 12345;
  full.gap_ns = 0.1;
  full.issue_ns = 1.0 / 3.0;
  full.period_ns = 0.1 + 1.0 / 3.0;
  full.nominal_gap_ns = 0.125;
  full.issue_p10_ns = 1;
  full.issue_p90_ns = 2;
  full.issue_slowest_ns = 3;
  full.accept_ns = 4;
  full.visible_ns = 5;
  full.visible_slowest_ns = 6;
  full.compute_gap_ns = 0;
  full.num_directions = 2;
  full.round_idx = 0;
  Sample sparse;
  sparse.num_producers = 1;
  sparse.bytes = 1;
  sparse.issue_ns = 1e-3;
  file.samples = {full, sparse};

  const std::string text = format_samples(file);
  const SampleFile back = parse_samples(text, "s.csv");
  EXPECT_EQ(format_samples(back), text);
  EXPECT_EQ(back.samples[0].issue_ns, full.issue_ns);
  EXPECT_EQ(back.samples[0].round_idx, 0);
  EXPECT_EQ(back.samples[1].round_idx, -1);
  EXPECT_EQ(back.samples[0].num_directions, 2);
  EXPECT_FALSE(measured(back.samples[1].accept_ns));
  EXPECT_EQ(back.source.sm_clock_mhz, 1979.6);
  EXPECT_EQ(back.destination.type, Endpoint::Type::local_memory);
  EXPECT_EQ(back.provenance.note, file.provenance.note);
}

TEST(SampleFile, ShippedSamplesAreSound) {
  for (const char* name : {"h200-nv18", "h200-host-pcie5"}) {
    const fs::path folder = fs::path(XSTAGE_SOURCE_DIR) / "profiles";
    const auto file = read_samples(folder / (std::string(name) + ".csv"));
    EXPECT_GT(file.samples.size(), 50u);
    EXPECT_THAT(file.warnings, IsEmpty());
    EXPECT_EQ(file.name, name);
    EXPECT_EQ(file.source.num_sms, 132);
    EXPECT_THAT(file.provenance.date, Not(IsEmpty()));
    const auto link = read_link(folder / (std::string(name) + ".json"));
    EXPECT_THAT(link.warnings, IsEmpty());
    EXPECT_EQ(link.profile.name, name);
  }
}

TEST(SampleFile, UnknownColumnsAreNamedAndNotRead) {
  const auto file = parse_samples(
      "experiment,kind,producers,bytes,gap_ns,issue_ns,period_ns,mood\n"
      "isolated,bulk,1,1024,,100,,sunny\n",
      "s.csv");
  ASSERT_EQ(file.warnings.size(), 1u);
  EXPECT_THAT(file.warnings[0], AllOf(HasSubstr("s.csv:1"), HasSubstr("mood")));
}

TEST(SampleFile, ContradictingTimesAreNamed) {
  const auto file =
      parse_samples(std::string(kHeader) + "periodic,bulk,1,1024,500,100,1000\n", "s.csv");
  ASSERT_EQ(file.warnings.size(), 1u);
  EXPECT_THAT(file.warnings[0], AllOf(HasSubstr("s.csv:2"), HasSubstr("600")));
}

TEST(SampleFile, WarningsAreBounded) {
  std::string text = kHeader;
  for (int i = 0; i < 1000; ++i) text += "periodic,bulk,1,1024,500,100,1000\n";
  EXPECT_LT(parse_samples(text, "s.csv").warnings.size(), 30u);
}

struct BadText {
  const char* name;
  std::string text;
  std::vector<std::string> expected;
};
void PrintTo(const BadText& bad, std::ostream* out) {
  *out << bad.name;
}

class BadSamples : public ::testing::TestWithParam<BadText> {};

TEST_P(BadSamples, NamesFilePlaceAndReason) {
  const std::string problem = samples_problem(GetParam().text);
  EXPECT_THAT(problem, HasSubstr("s.csv"));
  for (const auto& part : GetParam().expected) EXPECT_THAT(problem, HasSubstr(part));
}

std::string row(const std::string& text) {
  return kHeader + text + "\n";
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadSamples,
    ::testing::Values(
        BadText{"empty", "", {"no header"}}, BadText{"only_comments", "# nothing\n", {"no header"}},
        BadText{"header_only", kHeader, {"no samples"}},
        BadText{"missing_column",
                "experiment,kind,producers,bytes,gap_ns,period_ns\n",
                {"s.csv:1", "'issue_ns' is missing"}},
        BadText{"duplicate_column",
                "experiment,kind,producers,bytes,gap_ns,issue_ns,period_ns,bytes\n",
                {"s.csv:1", "'bytes' twice"}},
        BadText{"semicolons", "experiment;kind;producers\n", {"commas"}},
        BadText{"unnamed_column",
                "experiment,,kind,producers,bytes,gap_ns,issue_ns,period_ns\n",
                {"column 2 has no name"}},
        BadText{"nan", row("isolated,bulk,1,1024,,nan,"), {"s.csv:2", "column 6", "left empty"}},
        BadText{"infinite", row("isolated,bulk,1,1024,,inf,"), {"s.csv:2", "not a number"}},
        BadText{"negative", row("isolated,bulk,1,1024,,-5,"), {"s.csv:2", "issue_ns", "-5"}},
        BadText{"huge", row("isolated,bulk,1,1e308,,5,"), {"s.csv:2", "bytes", "1e+15"}},
        BadText{"overflow", row("isolated,bulk,1,1024,,1e999,"), {"s.csv:2", "1e999", "range"}},
        BadText{"text", row("isolated,bulk,1,many,,5,"), {"s.csv:2", "'many' is not a number"}},
        BadText{"unit", row("isolated,bulk,1,4K,,5,"), {"s.csv:2", "'4K' is not a number"}},
        BadText{"hexadecimal", row("isolated,bulk,1,0x400,,5,"), {"not a number"}},
        BadText{"zero_producers", row("isolated,bulk,0,1024,,5,"), {"producers", "legal 1"}},
        BadText{"half_producer", row("isolated,bulk,1.5,1024,,5,"), {"not a whole number"}},
        BadText{"zero_bytes", row("isolated,bulk,1,0,,5,"), {"bytes", "out of range"}},
        BadText{"experiment", row("once,bulk,1,1024,,5,"), {"'once'", "isolated, periodic"}},
        BadText{"kind", row("isolated,st.v3,1,1024,,5,"), {"'st.v3'", "register16"}},
        BadText{"kind_escaped", row("isolated,\x1b[31m\xff,1,1024,,5,"), {"\\x1b[31m\\xff"}},
        BadText{"short_row", row("isolated,bulk,1"), {"s.csv:2", "3 cells, the header has 7"}},
        BadText{"long_row", row("isolated,bulk,1,1024,,5,,"), {"s.csv:2", "8 cells"}},
        BadText{"truncated",
                std::string(kHeader) + "isolated,bulk,1,1024,,5,\nisol",
                {"s.csv:3", "1 cells"}},
        BadText{"no_times", row("isolated,bulk,1,1024,,,"), {"without issue_ns"}},
        BadText{"one_time", row("periodic,bulk,1,1024,5,,"), {"needs two of"}},
        BadText{"period_too_short", row("periodic,bulk,1,1024,,100,50"), {"less than one"}},
        BadText{"open_quote", row("isolated,\"bulk,1,1024,,5,"), {"not closed"}},
        BadText{"after_quote", row("isolated,\"bulk\"x,1,1024,,5,"), {"after a quoted"}},
        BadText{"nul_bytes", row(std::string("isolated,bulk,1\0,1024,,5,", 25)), {"\\x00"}},
        BadText{"version",
                "# schema: xstage.samples/99\n" + row("isolated,bulk,1,1024,,5,"),
                {"s.csv:1", "xstage.samples/1"}},
        BadText{"metadata_number",
                "# source.num_sms: lots\n" + row("isolated,bulk,1,1,,5,"),
                {"s.csv:1", "'lots'"}},
        BadText{"metadata_type",
                "# source.type: tpu\n" + row("isolated,bulk,1,1,,5,"),
                {"s.csv:1", "'tpu'", "host_memory"}},
        BadText{"metadata_utf8",
                "# provenance.note: \xc3(\n" + row("isolated,bulk,1,1,,5,"),
                {"s.csv:1", "UTF-8"}},
        BadText{"json", "{\"schema\": \"xstage.link\"}", {"s.csv:1", "missing"}},
        BadText{"commas", std::string(100'000, ','), {"s.csv:1", "over 256 cells"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(SampleFile, OneHugeLineEndsSoon) {
  const std::string text = kHeader + std::string(std::size_t{100} << 20, 'x');
  EXPECT_THAT(samples_problem(text), HasSubstr("s.csv:2"));
}

// ---- link profiles ----

TEST(LinkFile, RoundTripKeepsEverything) {
  const LinkProfile profile = make_profile();
  const std::string text = format_link(profile);
  const LinkFile back = parse_link(text, "l.json");
  EXPECT_THAT(back.warnings, IsEmpty());
  EXPECT_EQ(format_link(back.profile), text);
  EXPECT_EQ(back.profile.hash, sha256_hex(text));
  const KindFit& fit = back.profile.kind(StoreKind::bulk);
  EXPECT_EQ(fit.params.drain_rate, 1.0 / 3.0);
  EXPECT_FALSE(fit.params.capacity_mean_bytes.has_value());
  EXPECT_TRUE(std::isinf(fit.params.capacity_slowest_bytes.value()));
  EXPECT_EQ(fit.unidentified.at(0).reason, "no isolated burst exceeds the capacity");
  EXPECT_EQ(fit.held_out->burst_gap.worst_point, "worst");
  EXPECT_EQ(back.profile.provenance.note, profile.provenance.note);
  EXPECT_EQ(back.profile.measurements.at(0).interval->high, 1200);
}

TEST(LinkFile, MissingNumbersAreNullWithAReason) {
  const std::string text = format_link(make_profile());
  EXPECT_THAT(text, HasSubstr("\"reason\": \"no isolated burst exceeds the capacity\""));
  EXPECT_THAT(text, HasSubstr("\"load_rate_loss\": {\"value\": null, \"unit\": \"1\", \"reason\": "
                              "\"not measured\"}"));
  EXPECT_THAT(text, Not(HasSubstr(": nan")));
  EXPECT_THAT(text, Not(HasSubstr(": inf")));
}

TEST(LinkFile, UnknownMembersAreNamedAndNotRead) {
  const auto file = parse_link(
      replaced(format_link(make_profile()), "\"num_samples\"", "\"mood\": 1, \"num_samples\""),
      "l.json");
  ASSERT_EQ(file.warnings.size(), 1u);
  EXPECT_THAT(file.warnings[0], AllOf(HasSubstr("/kinds/0"), HasSubstr("mood")));
}

TEST(LinkFile, InvalidTextInProvenanceStillGivesReadableFiles) {
  LinkProfile profile = make_profile();
  profile.provenance.command_line = "xstage fit \xff.csv";
  EXPECT_NO_THROW((void)parse_link(format_link(profile), "l.json"));
}

struct BadEdit {
  const char* name;
  const char* from;
  std::string to;
  std::vector<std::string> expected;
};
void PrintTo(const BadEdit& bad, std::ostream* out) {
  *out << bad.name;
}

class BadLink : public ::testing::TestWithParam<BadEdit> {};

TEST_P(BadLink, NamesFilePlaceAndReason) {
  const std::string text = format_link(make_profile());
  const std::string problem = link_problem(replaced(text, GetParam().from, GetParam().to));
  EXPECT_THAT(problem, HasSubstr("l.json:"));
  for (const auto& part : GetParam().expected) EXPECT_THAT(problem, HasSubstr(part));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadLink,
    ::testing::Values(
        BadEdit{"version", "\"version\": 1", "\"version\": 2", {"/version", "reads 1"}},
        BadEdit{"version_text", "\"version\": 1", "\"version\": \"1\"", {"/version", "string"}},
        BadEdit{"schema", "xstage.link", "xstage.costs", {"/schema", "xstage.costs"}},
        BadEdit{"no_kinds", "\"kinds\"", "\"kind\"", {"'kinds' is missing"}},
        BadEdit{"nan", "1980.5", "NaN", {"l.json:"}},
        BadEdit{"negative", "0.3333333333333333", "-1", {"/kinds/0/drain_rate/value", "-1"}},
        BadEdit{"minus_nothing", "1980.5", "-", {"l.json:"}},
        BadEdit{"huge", "0.3333333333333333", "1e308", {"/kinds/0/drain_rate/value", "1e+308"}},
        BadEdit{"overflow", "0.3333333333333333", "1e999", {"1e999"}},
        BadEdit{"zero_rate", "0.3333333333333333", "0", {"/kinds/0/drain_rate/value"}},
        BadEdit{"text_number", "0.3333333333333333", "\"fast\"", {"string, not a number"}},
        BadEdit{"unbounded_rate", "0.3333333333333333", "\"unbounded\"", {"must be finite"}},
        BadEdit{"null_rate", "0.3333333333333333", "null", {"'drain_rate' has no value"}},
        BadEdit{"unit", "\"unit\": \"B/ns\"", "\"unit\": \"GB/h\"", {"/unit", "GB/h", "B/ns"}},
        BadEdit{"interval", "\"low\": 0.3", "\"low\": 7", {"above 'high'"}},
        BadEdit{"curve_order", "\"bytes\": 1024", "\"bytes\": 99999", {"/issue_curve/1/bytes"}},
        BadEdit{"kind", "\"kind\": \"bulk\"", "\"kind\": \"bulky\"", {"/kinds/0/kind", "bulky"}},
        BadEdit{"endpoint", "\"host_memory\"", "\"moon\"", {"/destination/type", "moon"}},
        BadEdit{"half_sm", "132", "132.5", {"/source/num_sms", "whole"}},
        BadEdit{"no_name", "\"made-up\"", "null", {"/name"}},
        BadEdit{"duplicate_key",
                "\"num_samples\": 97",
                "\"kind\": \"tensor\"",
                {"/kinds/0", "'kind' twice"}},
        BadEdit{"utf8", "GPU-0123", "GPU-\xff", {"l.json:", "UTF-8"}},
        BadEdit{
            "object_for_array", "\"measurements\": [", "\"measurements\": {\"a\": [", {"l.json:"}}),
    [](const auto& bad) { return std::string(bad.param.name); });

TEST(LinkFile, EveryTruncationIsAnErrorWithAPlace) {
  const std::string text = format_link(make_profile());
  const std::size_t content = text.find_last_not_of('\n') + 1;
  for (std::size_t size = 0; size < content; ++size) {
    EXPECT_THAT(link_problem(text.substr(0, size)), HasSubstr("l.json:")) << size;
  }
}

TEST(LinkFile, DeepNestingEndsSoon) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string text;
    while (text.size() < (std::size_t{100} << 20)) text += open;
    EXPECT_THAT(link_problem(text), HasSubstr("nested deeper than 32"));
  }
}

TEST(LinkFile, ManyMembersEndSoon) {
  std::string text = "{";
  for (int i = 0; i < 1'000'000; ++i) text += "\"k" + std::to_string(i) + "\":1,";
  EXPECT_THAT(link_problem(text + "\"z\":1}"), HasSubstr("over 256 members"));
}

TEST(LinkFile, ReadsABom) {
  EXPECT_NO_THROW((void)parse_link("\xef\xbb\xbf" + format_link(make_profile()), "l.json"));
}

// ---- files ----

TEST(Files, UnreadableFilesAreNamed) {
  const TemporaryFolder folder;
  const auto missing = folder / "none.json";
  EXPECT_THAT(message_of([&] { (void)read_link(missing); }, ErrorCategory::bad_file),
              AllOf(HasSubstr(missing.string()), HasSubstr("No such file")));
  EXPECT_THAT(message_of([&] { (void)read_samples("/"); }, ErrorCategory::bad_file),
              HasSubstr("Is a directory"));
}

TEST(Files, OversizedFilesAreRefused) {
  const TemporaryFolder folder;
  const auto path = folder / "large.json";
  std::ofstream(path) << "{";
  fs::resize_file(path, std::uintmax_t{100} << 20);
  EXPECT_THAT(message_of([&] { (void)read_link(path); }, ErrorCategory::bad_file),
              AllOf(HasSubstr("100 MiB"), HasSubstr("16 MiB")));
  EXPECT_THAT(message_of([&] { (void)read_link("/dev/zero"); }, ErrorCategory::bad_file),
              HasSubstr("more than 16 MiB"));
}

TEST(Files, WritingKeepsWhatIsThere) {
  const TemporaryFolder folder;
  const auto path = folder / "out.json";
  write_text_file(path, "one", Overwrite::no);
  EXPECT_EQ(slurp(path), "one");
  EXPECT_THAT(
      message_of([&] { write_text_file(path, "two", Overwrite::no); }, ErrorCategory::usage),
      AllOf(HasSubstr("exists"), HasSubstr("--force")));
  EXPECT_EQ(slurp(path), "one");
  write_text_file(path, "two", Overwrite::yes);
  EXPECT_EQ(slurp(path), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), fs::directory_iterator()), 1);
}

TEST(Files, FailedWritesLeaveNothing) {
  const TemporaryFolder folder;
  const auto path = folder / "none";
  EXPECT_THAT(message_of([&] { write_text_file(path / "x", "one", Overwrite::no); },
                         ErrorCategory::runtime),
              HasSubstr("cannot write"));
  EXPECT_THAT(message_of([&] { write_text_file(path.parent_path(), "one", Overwrite::yes); },
                         ErrorCategory::runtime),
              HasSubstr("Is a directory"));
  EXPECT_TRUE(fs::is_empty(path.parent_path()));
}

// ---- lookup ----

class FindLink : public ::testing::Test {
 protected:
  void SetUp() override { ::setenv("XDG_DATA_HOME", (folder_ / "data").c_str(), 1); }
  void TearDown() override { ::unsetenv("XDG_DATA_HOME"); }

  void write_probe(const char* name, const char* date) const {
    LinkProfile profile = make_profile();
    profile.name = name;
    profile.provenance.date = date;
    fs::create_directories(probe_directory());
    write_text_file(probe_directory() / (std::string(name) + ".json"), format_link(profile),
                    Overwrite::no);
  }

  TemporaryFolder folder_;
};

TEST_F(FindLink, PathsAreTakenAsTheyAre) {
  EXPECT_EQ(find_link("some/where"), fs::path("some/where"));
  EXPECT_EQ(find_link("here.json"), fs::path("here.json"));
}

TEST_F(FindLink, UnknownNamesListTheShippedOnes) {
  EXPECT_THAT(message_of([] { (void)find_link("h2000"); }, ErrorCategory::usage),
              AllOf(HasSubstr("'h2000'"), HasSubstr("legal are")));
}

TEST_F(FindLink, WithoutAProbeTheErrorSaysWhatToDo) {
  EXPECT_THAT(message_of([] { (void)find_link(""); }, ErrorCategory::usage),
              AllOf(HasSubstr("xstage probe"), HasSubstr(probe_directory().string())));
}

TEST_F(FindLink, TheNewestProbeIsTaken) {
  write_probe("b-new", "2026-11-30T12:00:00Z");
  write_probe("c-old", "2026-11-29T12:00:00Z");
  write_probe("a-older", "2025-01-01T00:00:00Z");
  std::ofstream(probe_directory() / "z-damaged.json") << "{";
  if (fs::exists("/proc/driver/nvidia/gpus")) {
    // The made-up GPU is not one of this machine, so none of these probes is.
    EXPECT_THROW((void)find_link(""), Error);
  } else {
    EXPECT_EQ(find_link("").filename(), "b-new.json");
  }
  EXPECT_EQ(find_link("c-old").filename(), "c-old.json");
}

}  // namespace
}  // namespace xstage
