// A plan's tasks, as the movers of the push kernel take them. Host and device: tests carry a plan
// out on the CPU by the same code.
#pragma once

#include <cstdint>

#include "attention/push_plan.hpp"
#include "xstage/attention_order.hpp"

namespace xstage::attention {

// A block of rows of one part, batch and group of heads.
struct PushTask {
  const PushPart* part;
  const char* source;  // of row 0
  char* destination;
  std::uint32_t unit_bytes;
  std::int32_t first_row;  // among all rows of the part's moves
  std::int32_t num_rows;
  bool in_one_move;       // rows that follow each other on both sides
  std::int32_t from, to;  // of the first row

  // Row `i` of the task.
  XSTAGE_HOST_DEVICE void locate(std::int32_t i, const char*& from_row, char*& to_row) const {
    std::int32_t row = first_row + i;
    const RowMove* move = part->moves;
    while (row >= move->num_rows) row -= move++->num_rows;
    from_row = source + (move->from + row) * part->source_row;
    to_row = destination + (move->to + row) * part->destination_row;
  }
};

// Walks tasks in ascending order.
class PushTasks {
 public:
  XSTAGE_HOST_DEVICE PushTasks(const PushPart* parts, std::int32_t num_parts)
      : parts_(parts), num_parts_(num_parts) {}

  XSTAGE_HOST_DEVICE PushTask at(std::int32_t idx) {
    while (part_ + 1 < num_parts_ && idx >= parts_[part_ + 1].first_task) ++part_;
    const PushPart& part = parts_[part_];
    const std::int32_t blocks = ceil_div(part.num_rows, part.rows_per_task);
    std::int32_t left = idx - part.first_task;
    const std::int32_t block = left % blocks;
    left /= blocks;
    const std::int32_t group = left % part.num_groups;
    const std::int32_t batch = left / part.num_groups;
    const std::int64_t head = static_cast<std::int64_t>(group) * part.heads_per_group;
    PushTask task;
    task.part = &part;
    task.source = part.source + batch * part.source_batch + head * part.source_head;
    task.destination =
        part.destination + batch * part.destination_batch + head * part.destination_head;
    task.unit_bytes = static_cast<std::uint32_t>(group + 1 == part.num_groups ? part.last_unit_bytes
                                                                              : part.unit_bytes);
    task.first_row = block * part.rows_per_task;
    const std::int32_t rest = part.num_rows - task.first_row;
    task.num_rows = rest < part.rows_per_task ? rest : part.rows_per_task;
    std::int32_t row = task.first_row;
    const RowMove* move = part.moves;
    while (row >= move->num_rows) row -= move++->num_rows;
    task.in_one_move = row + task.num_rows <= move->num_rows;
    task.from = move->from + row;
    task.to = move->to + row;
    return task;
  }

 private:
  const PushPart* parts_;
  std::int32_t num_parts_;
  std::int32_t part_ = 0;
};

}  // namespace xstage::attention
