// Runs a fuzz target without libFuzzer: deterministic mutations of the files named on the command
// line. Usage: PROGRAM NUM_MUTATIONS SEED FILE...
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

// Pieces that parsers trip over.
constexpr std::string_view kPieces[] = {"nan",
                                        "-1",
                                        "1e308",
                                        "1e999",
                                        "0x1p3",
                                        "\"",
                                        "\\u0000",
                                        "\xff",
                                        "\xef\xbb\xbf",
                                        ",",
                                        ",,",
                                        "\r\n",
                                        "#",
                                        "{",
                                        "}",
                                        "[",
                                        "]",
                                        "null",
                                        ":",
                                        "-",
                                        "1e-320",
                                        "18446744073709551616",
                                        "unbounded",
                                        "# source.num_sms: ",
                                        "\"version\": 1,",
                                        "isolated,bulk,1,1,,1,"};

std::string mutate(std::string text, std::mt19937_64& random) {
  const auto below = [&random](std::size_t n) { return n == 0 ? 0 : random() % n; };
  const std::size_t num_edits = 1 + below(6);
  for (std::size_t i = 0; i < num_edits; ++i) {
    const std::size_t at = below(text.size() + 1);
    const std::size_t length = below(std::min<std::size_t>(text.size() - at, 40) + 1);
    switch (below(6)) {
      case 0:
        text.insert(at, kPieces[below(std::size(kPieces))]);
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.replace(at, length, kPieces[below(std::size(kPieces))]);
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(random());
        break;
      case 4:
        text.insert(at, text.substr(below(text.size() + 1), 80));
        break;
      default:
        text.resize(at);
    }
  }
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const long num_mutations = std::atol(argv[1]);
  const auto seed = static_cast<std::uint64_t>(std::atoll(argv[2]));
  std::mt19937_64 random(seed);
  std::vector<std::string> corpus;
  for (int i = 3; i < argc; ++i) {
    std::ifstream file(argv[i], std::ios::binary);
    corpus.push_back((std::ostringstream() << file.rdbuf()).str());
    if (corpus.back().empty()) {
      std::cerr << argv[i] << ": empty or unreadable\n";
      return 1;
    }
    // Small enough that a mutation often hits something that matters.
    if (corpus.back().size() > 6000) corpus.back().resize(6000);
  }
  std::cout << num_mutations << " mutations of " << corpus.size() << " files, seed " << seed
            << std::endl;
  for (long i = 0; i < num_mutations; ++i) {
    const std::string text = mutate(corpus[static_cast<std::size_t>(i) % corpus.size()], random);
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
  std::cout << "no crash, no wrong error\n";
  return 0;
}
