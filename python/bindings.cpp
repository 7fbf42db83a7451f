// Python module xstage._native: thin. Results are plain dictionaries, the same as the tool's JSON;
// xstage/__init__.py makes dataclasses of them.
#include "bindings.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "cli/values.hpp"
#include "io/result_json.hpp"
#include "xstage/error.hpp"
#include "xstage/files.hpp"
#include "xstage/model.hpp"
#include "xstage/plan.hpp"
#include "xstage/version.hpp"

namespace nb = nanobind;

namespace xstage::python {
namespace {

nb::object to_python(const io::Json& json) {
  switch (json.type()) {
    case io::Json::value_t::null:
      return nb::none();
    case io::Json::value_t::boolean:
      return nb::bool_(json.get<bool>());
    case io::Json::value_t::number_integer:
    case io::Json::value_t::number_unsigned:
      return nb::int_(json.get<std::int64_t>());
    case io::Json::value_t::number_float:
      return nb::float_(json.get<double>());
    case io::Json::value_t::string:
      return nb::str(json.get_ref<const std::string&>().c_str());
    case io::Json::value_t::array: {
      nb::list list;
      for (const auto& element : json) list.append(to_python(element));
      return list;
    }
    default: {
      nb::dict dict;
      for (const auto& [key, value] : json.items()) dict[key.c_str()] = to_python(value);
      return dict;
    }
  }
}

// xstage.Error with the category and the tool's exit code as attributes.
void register_error(nb::module_& module) {
  const nb::object type =
      nb::steal(PyErr_NewExceptionWithDoc("xstage.Error",
                                          "An xstage error; .category and .exit_code say what "
                                          "kind.",
                                          PyExc_RuntimeError, nullptr));
  module.attr("Error") = type;
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void* payload) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          const nb::handle error_type(static_cast<PyObject*>(payload));
          nb::object instance = error_type(error.what());
          instance.attr("category") = std::string(to_string(error.category()));
          instance.attr("exit_code") = error.exit_code();
          PyErr_SetObject(error_type.ptr(), instance.ptr());
        }
      },
      type.ptr());
}

// A loaded profile, opaque to Python.
struct Link {
  LinkFile file;
};

Link load(const std::string& name_or_path) {
  return {load_link(name_or_path)};
}

nb::dict link_info(const Link& link) {
  nb::dict info = nb::cast<nb::dict>(to_python(io::link_identity(link.file.profile)));
  info["path"] = link.file.path.string();
  nb::list kinds;
  for (const KindFit& kind : link.file.profile.kinds) {
    kinds.append(std::string(to_string(kind.params.kind)));
  }
  info["kinds"] = kinds;
  info["num_sms"] = link.file.profile.source.num_sms;
  info["warnings"] = to_python(io::Json(link.file.warnings));
  return info;
}

nb::object link_json(const Link& link) {
  return to_python(io::Json::parse(format_link(link.file.profile)));
}

nb::object predict_one(const Link& link, const std::string& kind, std::optional<int> producers,
                       const std::string& bytes, const std::string& gap) {
  const LinkProfile& profile = link.file.profile;
  const LinkParams& params = profile.kind(parse_store_kind(kind)).params;
  const int num_sms = profile.source.num_sms;
  Burst burst;
  burst.num_producers = producers.value_or(num_sms);
  const int most = num_sms > 0 ? num_sms : 1'000'000;
  if (burst.num_producers < 1 || burst.num_producers > most) {
    throw Error(ErrorCategory::usage, "producers " + std::to_string(burst.num_producers) +
                                          ": legal 1.." + std::to_string(most));
  }
  burst.bytes = cli::parse_size("bytes", bytes, cli::kSizeRange);
  burst.gap_ns = cli::parse_time("gap", gap, cli::kTimeRange);
  return to_python(io::prediction_json(params, burst, predict(params, burst)));
}

nb::object plan_workload(const std::string& workload, const Link& link, const std::string& costs,
                         int ranks) {
  const Workload parsed = read_workload(find_workload(workload));
  const TileCosts tile_costs = read_costs(find_costs(costs));
  const Plan result = plan(parsed, link.file.profile, tile_costs, ranks);
  return to_python(io::plan_json(result, tile_costs, link.file.profile));
}

}  // namespace

NB_MODULE(_native, module) {
  module.doc() = "The compiled part of xstage; use the package instead.";
  module.attr("__version__") = std::string(version());
  register_error(module);
  nb::class_<Link>(module, "Link")
      .def("info", &link_info)
      .def("to_dict", &link_json, "The profile as in its file, schema xstage.link.");
  module.def("load_link", &load, nb::arg("name_or_path"));
  module.def("predict", &predict_one, nb::arg("link"), nb::arg("kind"), nb::arg("producers").none(),
             nb::arg("bytes"), nb::arg("gap"));
  module.def("plan", &plan_workload, nb::arg("workload"), nb::arg("link"), nb::arg("costs"),
             nb::arg("ranks"));
  bind_attention(module);
  bind_moe(module);
}

}  // namespace xstage::python
