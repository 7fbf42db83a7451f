// The command-line tool from outside: exit codes, what goes to which stream, screens, bad input.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/run.hpp"
#include "temporary_folder.hpp"
#include "xstage/files.hpp"
#include "xstage/model.hpp"

namespace xstage::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

const fs::path kFolder = fs::path(XSTAGE_SOURCE_DIR) / "tests" / "cli";
const std::string kLink = (kFolder / "link.json").string();
const std::string kSamples =
    (fs::path(XSTAGE_SOURCE_DIR) / "tests" / "data" / "h200-nv18-aggregates.csv").string();

class Cli : public FolderTest {};

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1,
                     end - (start == std::string::npos ? 0 : start + 1) + 1);
}

// The layout without the figures: every number is '#', blanks are one.
std::string layout(const std::string& text) {
  std::string shape;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool in_word = i > 0 && (std::isalnum(static_cast<unsigned char>(text[i - 1])) != 0);
    if (std::isdigit(c) != 0 && !in_word) {
      while (i + 1 < text.size() &&
             (std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0 || text[i + 1] == '.')) {
        ++i;
      }
      shape += '#';
    } else if (c != ' ' || shape.empty() || shape.back() != ' ') {
      shape += text[i];
    }
  }
  return shape;
}

// All but the line that names the next step: it may hold a path.
std::string screen(const Outcome& outcome) {
  EXPECT_THAT(last_line(outcome.out), StartsWith("next: "));
  return outcome.out.substr(0, outcome.out.rfind("next: "));
}

void expect_golden(const char* name, const std::string& text) {
  const fs::path file = kFolder / "golden" / name;
  if (std::getenv("XSTAGE_UPDATE_GOLDEN") != nullptr) std::ofstream(file) << layout(text);
  EXPECT_EQ(layout(text), slurp(file)) << "XSTAGE_UPDATE_GOLDEN=1 rewrites " << file;
}

void expect_width(const std::string& text, std::size_t limit) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), limit) << line;
}

// ---- every verb ----

TEST_F(Cli, HelpIsAResult) {
  const auto help = run_tool({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.err, IsEmpty());
  EXPECT_THAT(last_line(help.out), StartsWith("next: "));
  expect_width(help.out, 100);
  for (const char* verb : {"doctor", "probe", "fit", "predict", "report", "demo"}) {
    EXPECT_THAT(help.out, HasSubstr(verb));
    const auto verb_help = run_tool({verb, "--help"});
    EXPECT_EQ(verb_help.exit_code, 0) << verb;
    EXPECT_THAT(verb_help.out, HasSubstr("--json")) << verb;
    expect_width(verb_help.out, 100);
  }
}

TEST_F(Cli, VersionNamesTheBuild) {
  const auto version = run_tool({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, AllOf(StartsWith("xstage "), HasSubstr("CUDA")));
}

struct BadUse {
  const char* name;
  std::vector<std::string> arguments;
  std::vector<std::string> expected;
};
void PrintTo(const BadUse& use, std::ostream* out) {
  *out << use.name;
}

class Usage : public ::testing::TestWithParam<BadUse> {};

TEST_P(Usage, IsExitCodeTwoAndNamesTheLegalValues) {
  const auto outcome = run_tool(GetParam().arguments);
  EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
  EXPECT_THAT(outcome.out, IsEmpty());
  EXPECT_THAT(outcome.err, StartsWith("xstage: error: "));
  EXPECT_THAT(last_line(outcome.err), StartsWith("next: "));
  for (const auto& part : GetParam().expected) EXPECT_THAT(outcome.err, HasSubstr(part));
}

std::vector<std::string> predict(std::vector<std::string> more) {
  std::vector<std::string> arguments{"predict", "--link", kLink};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

INSTANTIATE_TEST_SUITE_P(
    Errors, Usage,
    ::testing::Values(
        BadUse{"no_verb", {}, {"no verb"}},
        BadUse{"unknown_verb", {"predct"}, {"'predct'", "did you mean 'predict'"}},
        BadUse{"far_verb", {"frobnicate"}, {"'frobnicate'", "legal are", "predict"}},
        BadUse{"unknown_option", predict({"--prodcers", "3"}), {"did you mean '--producers'"}},
        BadUse{"extra_argument", predict({"--bytes", "1K", "more"}), {"'more'"}},
        BadUse{"no_value", {"predict", "--link"}, {"--link"}},
        BadUse{"no_bytes", predict({}), {"--bytes is missing"}},
        BadUse{"producers",
               predict({"--bytes", "1K", "--producers", "200"}),
               {"--producers 200: legal 1..100 (Made-up GPU has 100 SMs)"}},
        BadUse{"producers_zero", predict({"--bytes", "1K", "--producers", "0"}), {"1..100"}},
        BadUse{"producers_half", predict({"--bytes", "1K", "--producers", "1.5"}), {"1..100"}},
        BadUse{"producers_text", predict({"--bytes", "1K", "--producers", "all"}), {"1..100"}},
        BadUse{"size", predict({"--bytes", "32Q"}), {"--bytes 32Q", "32K"}},
        BadUse{"size_negative", predict({"--bytes=-1"}), {"--bytes -1"}},
        BadUse{"size_fraction", predict({"--bytes", "1.0001"}), {"whole bytes"}},
        BadUse{"size_huge", predict({"--bytes", "1e300"}), {"1 TiB"}},
        BadUse{"size_nan", predict({"--bytes", "nan"}), {"--bytes nan"}},
        BadUse{"size_hole", predict({"--bytes", "1K,,2K"}), {"commas"}},
        BadUse{"time", predict({"--bytes", "1K", "--gap", "8 parsecs"}), {"--gap", "8us"}},
        BadUse{"time_infinite", predict({"--bytes", "1K", "--gap", "inf"}), {"--gap inf"}},
        BadUse{"kind",
               predict({"--bytes", "1K", "--kind", "tensor"}),
               {"--kind tensor: legal register16, bulk"}},
        BadUse{"sweep_half", predict({"--min", "1K"}), {"belong together"}},
        BadUse{"sweep_twice",
               predict({"--min", "1K", "--max", "2K", "--bytes", "1K"}),
               {"exclude each other"}},
        BadUse{"sweep_back", predict({"--min", "4K", "--max", "2K"}), {"--max 2K"}},
        BadUse{"sweep_factor",
               predict({"--min", "1K", "--max", "2K", "--factor", "1"}),
               {"--factor 1"}},
        BadUse{"too_many",
               predict({"--min", "1", "--max", "1T", "--factor", "1.01", "--gap",
                        "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20"}),
               {"--max 1T"}},
        BadUse{"link_name", {"predict", "--link", "h2000", "--bytes", "1K"}, {"'h2000'"}},
        BadUse{"probe_kind", {"probe", "--kind", "nope"}, {"'nope'", "register16"}},
        BadUse{"probe_timeout", {"probe", "--timeout", "1ns"}, {"--timeout"}},
        BadUse{"seed", {"fit", "x.csv", "--seed", "-1"}, {"--seed"}},
        BadUse{"demo_samples", {"demo", "--samples", "h2000"}, {"h200-nv18"}}),
    [](const auto& use) { return std::string(use.param.name); });

TEST_F(Cli, ErrorsAreJsonToo) {
  const auto outcome = run_tool(predict({"--bytes", "1Q", "--json"}));
  EXPECT_EQ(outcome.exit_code, 2);
  const json result = json::parse(outcome.out);
  EXPECT_EQ(result.at("error").at("exit_code"), 2);
  EXPECT_EQ(result.at("error").at("category"), "usage");
  EXPECT_THAT(result.at("error").at("message").get<std::string>(), HasSubstr("--bytes 1Q"));
}

TEST_F(Cli, AReaderThatLeavesIsNoError) {
  const auto outcome = run_tool(predict({"--bytes", "1K"}), {.close_stdout = true});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.err, IsEmpty());
}

TEST_F(Cli, AFullDiskIsAnError) {
  const auto outcome = run_tool(predict({"--bytes", "1K"}), {.stdout_to = "/dev/full"});
  EXPECT_EQ(outcome.exit_code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("No space left"));
}

TEST_F(Cli, NoColoursWhereNobodyLooks) {
  const auto outcome = run_tool(predict({"--bytes", "1K"}), {.environment = {"TERM=xterm"}});
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

// ---- predict ----

TEST_F(Cli, PredictShowsOneBurst) {
  const auto outcome = run_tool(predict({"--kind", "bulk", "--bytes", "32K", "--gap", "8us"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, IsEmpty());
  expect_golden("predict_one.txt", screen(outcome));
  expect_width(screen(outcome), 100);
}

TEST_F(Cli, PredictShowsATable) {
  const auto outcome =
      run_tool(predict({"--min", "4K", "--max", "64K", "--factor", "4", "--gap", "0,8us"}));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  expect_golden("predict_table.txt", screen(outcome));
  expect_width(screen(outcome), 100);
}

TEST_F(Cli, PredictSaysWhenCapacityIsUnknown) {
  const auto outcome = run_tool(predict({"--kind", "register16", "--bytes", "32K"}));
  EXPECT_THAT(outcome.out, HasSubstr("unknown: no burst was large enough"));
}

TEST_F(Cli, PredictJsonIsWhatTheModelSays) {
  const auto outcome = run_tool(predict(
      {"--kind", "bulk", "--bytes", "32K", "--gap", "8us", "--producers", "7,100", "--json"}));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json result = json::parse(outcome.out);
  const LinkProfile profile = read_link(kLink).profile;
  EXPECT_EQ(result.at("link").at("sha256"), profile.hash);
  ASSERT_EQ(result.at("predictions").size(), 2u);
  int idx = 0;
  for (const int producers : {7, 100}) {
    const Prediction expected =
        xstage::predict(profile.kind(StoreKind::bulk).params, {producers, 32768, 8000});
    const json& got = result.at("predictions").at(static_cast<std::size_t>(idx++));
    EXPECT_EQ(got.at("producers"), producers);
    EXPECT_EQ(got.at("issue_ns").get<double>(), expected.issue_ns);
    EXPECT_EQ(got.at("period_ns").get<double>(), expected.period_ns);
    EXPECT_EQ(got.at("onset_gap_ns").get<double>(), expected.onset_gap_ns);
    EXPECT_EQ(got.at("coupled").at("period_ns").get<double>(), expected.coupled.period_ns);
  }
}

TEST_F(Cli, PredictionsAreKeptUnlessForced) {
  const std::string out = path("p.json");
  const auto arguments = predict({"--kind", "bulk", "--bytes", "1K", "--out", out});
  EXPECT_EQ(run_tool(arguments).exit_code, 0);
  EXPECT_EQ(json::parse(slurp(out)).at("schema"), "xstage.predictions");
  const auto again = run_tool(arguments);
  EXPECT_EQ(again.exit_code, 2);
  EXPECT_THAT(again.err, AllOf(HasSubstr(out), HasSubstr("--force")));
  auto forced = arguments;
  forced.emplace_back("--force");
  EXPECT_EQ(run_tool(forced).exit_code, 0);
}

// ---- files ----

TEST_F(Cli, BadFilesAreExitCodeSixWithPlaceAndReason) {
  const std::string good = slurp(kLink);
  const std::string cut = write("cut.json", good.substr(0, good.size() / 2));
  auto outcome = run_tool({"predict", "--link", cut, "--bytes", "1K"});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(cut + ":"), HasSubstr("syntax error")));

  outcome = run_tool({"predict", "--link", path("none.json"), "--bytes", "1K"});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_THAT(outcome.err, HasSubstr("No such file"));

  const std::string csv = write("bad.csv",
                                "experiment,kind,producers,bytes,gap_ns,issue_ns,period_ns\n"
                                "isolated,bulk,1,1024,,-3,\n");
  outcome = run_tool({"fit", csv});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_THAT(outcome.err, HasSubstr(csv + ":2, column 6 (issue_ns): -3 is out of range"));

  outcome = run_tool({"report", "--link", csv, "--out", path("r.html")});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_FALSE(fs::exists(path("r.html")));
}

TEST_F(Cli, FitWritesAProfileThatPredictReads) {
  const std::string out = path("link.json");
  const auto fitted = run_tool({"fit", kSamples, "--out", out, "--name", "mine"});
  ASSERT_EQ(fitted.exit_code, 0) << fitted.err;
  EXPECT_THAT(fitted.err, IsEmpty());
  EXPECT_THAT(last_line(fitted.out), AllOf(StartsWith("next: xstage predict"), HasSubstr(out)));
  expect_width(fitted.out, 110);  // bytes; the screen is at most 100 columns
  const LinkFile link = read_link(out);
  EXPECT_THAT(link.warnings, IsEmpty());
  EXPECT_EQ(link.profile.name, "mine");
  EXPECT_EQ(link.profile.source.num_sms, 132);
  EXPECT_THAT(link.profile.provenance.command_line, StartsWith("xstage fit "));
  EXPECT_EQ(run_tool({"predict", "--link", out, "--bytes", "32K"}).exit_code, 0);
  EXPECT_EQ(run_tool({"fit", kSamples, "--out", out}).exit_code, 2);
}

TEST_F(Cli, FitReadsStandardInputAndIsDeterministic) {
  const RunOptions piped{.input = slurp(kSamples)};
  const auto first = run_tool({"fit", "-", "--json"}, piped);
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_EQ(run_tool({"fit", "-", "--json"}, piped).out, first.out);
  const json result = json::parse(first.out);
  EXPECT_EQ(result.at("link").at("name"), "h200-nv18");
  EXPECT_EQ(result.at("samples_sha256"), sha256_hex(piped.input));
}

TEST_F(Cli, FitWarnsOfColumnsThatItDoesNotKnow) {
  std::string text = "experiment,kind,producers,bytes,gap_ns,issue_ns,period_ns,mood\n";
  for (int i = 0; i < 4; ++i) {
    text += "periodic,bulk,132,32768," + std::to_string(i * 100) + "," +
            std::to_string(11000 - i * 100) + ",11000,sunny\n";
  }
  const auto outcome = run_tool({"fit", write("s.csv", text)});
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("warning"), HasSubstr("'mood'")));
}

TEST_F(Cli, ShippedProfilesAreReadByName) {
  for (const char* name : {"h200-nv18", "h200-host-pcie5"}) {
    const auto outcome = run_tool({"predict", "--link", name, "--bytes", "16K", "--json"});
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_THAT(outcome.err, IsEmpty());
    EXPECT_EQ(json::parse(outcome.out).at("link").at("name"), name);
  }
}

TEST_F(Cli, WithoutALinkTheNewestProbeIsMeant) {
  const RunOptions nowhere{.environment = {"XDG_DATA_HOME=" + path("data")}};
  const auto outcome = run_tool({"predict", "--bytes", "1K"}, nowhere);
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("xstage probe"), HasSubstr("h200-nv18")));
  EXPECT_THAT(outcome.err, Not(HasSubstr(".tables")));  // no profiles, though JSON and beside them
}

// ---- report, demo ----

TEST_F(Cli, ReportIsOneFileWithoutTheNetwork) {
  const std::string out = path("r.html");
  const auto outcome = run_tool({"report", "--link", "h200-nv18", "--out", out});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::string html = slurp(out);
  EXPECT_THAT(html, AllOf(StartsWith("<!doctype html>"), EndsWith("</html>\n")));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("src=\"http")), Not(HasSubstr("href=\"http"))));
  EXPECT_THAT(html, AllOf(Not(HasSubstr("@import")), HasSubstr("NVLink, 18 links")));
}

TEST_F(Cli, ReportShowsTablesAndWarningsOfTheProbe) {
  const std::string out = path("r.html");
  auto outcome = run_tool({"report", "--link", "h200-nv18", "--out", out, "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("\"num_tables\": 12"));
  EXPECT_THAT(slurp(out), AllOf(HasSubstr("load_interference, 50 rows"), HasSubstr("max_late_ns")));

  const std::string head = R"({"schema": "xstage.tables", "version": 1, "name": "n", )";
  const std::string file =
      write("own.tables.json", head + R"("warnings": ["bulk <K=132>: noise 3 %"], "tables": [
        {"name": "odd", "columns": ["a", "b"], "rows": [["x", null], ["y", 0.5]]}]})");
  outcome = run_tool({"report", "--link", kLink, "--tables", file, "--out", out, "--force"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(slurp(out), AllOf(HasSubstr("odd, 2 rows"), HasSubstr("<td>x</td><td>-</td>"),
                                HasSubstr("<li>bulk &lt;K=132&gt;: noise 3 %</li>")));

  const std::string ragged =
      write("ragged.tables.json",
            head + R"("tables": [{"name": "t", "columns": ["a"], "rows": [["x"], ["y", 1]]}]})");
  outcome = run_tool({"report", "--link", kLink, "--tables", ragged, "--out", out, "--force"});
  EXPECT_EQ(outcome.exit_code, 6);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("/tables/0/rows/1"), HasSubstr("table of 1 columns")));
}

TEST_F(Cli, ReportEscapesWhatTheProfileSays) {
  std::string text = slurp(kLink);
  const std::string evil = "</script><script>alert(1)</script>";
  text.replace(text.find("made-up"), 7, evil);
  const std::string out = path("r.html");
  const auto outcome = run_tool({"report", "--link", write("evil.json", text), "--out", out});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(slurp(out), Not(HasSubstr("alert(1)</script>")));
}

TEST_F(Cli, DemoShowsTheWholeWay) {
  const auto outcome =
      run_tool({"demo", "--out", path("demo")}, {.environment = {"CUDA_VISIBLE_DEVICES="}});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* part : {"[1/4] samples", "[2/4] fit", "[3/4] held out", "[4/4] plans",
                           "not this machine", "report.html"}) {
    EXPECT_THAT(outcome.out, HasSubstr(part));
  }
  EXPECT_THAT(last_line(outcome.out), StartsWith("next: xstage predict"));
  EXPECT_TRUE(fs::exists(path("demo/report.html")));
  EXPECT_THAT(read_link(path("demo/link.json")).warnings, IsEmpty());
  EXPECT_EQ(run_tool({"demo", "--out", path("demo")}).exit_code, 2);
}

// ---- without a GPU ----

TEST_F(Cli, WithoutAGpuDoctorAndProbeSayWhy) {
  const RunOptions no_gpu{.environment = {"CUDA_VISIBLE_DEVICES="}};
  for (const char* verb : {"doctor", "probe"}) {
    const auto outcome = run_tool({verb, "--json"}, no_gpu);
    EXPECT_EQ(outcome.exit_code, 3) << outcome.err;
    EXPECT_THAT(outcome.err, StartsWith("xstage: error: "));
    EXPECT_EQ(json::parse(outcome.out).at("error").at("category"), "not_possible");
  }
}

}  // namespace
}  // namespace xstage::test
