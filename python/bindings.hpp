// Parts of the Python module: each adds its functions.
#pragma once

#include <nanobind/nanobind.h>

namespace xstage::python {

void bind_attention(nanobind::module_& module);
void bind_moe(nanobind::module_& module);

}  // namespace xstage::python
