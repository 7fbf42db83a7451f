// Help that fits into 100 columns.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace xstage::cli {

class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter();
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
  std::string make_subcommand(const CLI::App* verb) const override;
  std::string make_usage(const CLI::App* app, std::string name) const override;
};

}  // namespace xstage::cli
