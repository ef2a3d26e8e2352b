// The whole plan room in one include: generate, verify, lower, simulate, search, draw. Needs the
// target millrace::plan alone, whose only dependencies are the standard libraries.
#pragma once

#include "millrace/scheduler/plan/action.hpp"
#include "millrace/scheduler/plan/closed_forms.hpp"
#include "millrace/scheduler/plan/cost.hpp"
#include "millrace/scheduler/plan/draw.hpp"
#include "millrace/scheduler/plan/exact.hpp"
#include "millrace/scheduler/plan/gallery.hpp"
#include "millrace/scheduler/plan/generators.hpp"
#include "millrace/scheduler/plan/graph.hpp"
#include "millrace/scheduler/plan/list_schedule.hpp"
#include "millrace/scheduler/plan/lower_bound.hpp"
#include "millrace/scheduler/plan/objective.hpp"
#include "millrace/scheduler/plan/passes.hpp"
#include "millrace/scheduler/plan/program.hpp"
#include "millrace/scheduler/plan/search.hpp"
#include "millrace/scheduler/plan/shape.hpp"
#include "millrace/scheduler/plan/simulate.hpp"
#include "millrace/scheduler/plan/slicing.hpp"
#include "millrace/scheduler/plan/sweep.hpp"
#include "millrace/scheduler/plan/text.hpp"
#include "millrace/scheduler/plan/verify.hpp"
