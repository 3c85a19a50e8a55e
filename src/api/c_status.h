#pragma once
// The C boundary: exceptions become a status and the thread's sentence.
#include <new>
#include <stdexcept>

#include "base/error.h"
#include "upweave/upweave.h"

namespace upweave {

upweave_status set_error(Status status, const char* sentence) noexcept;

template <class F>
upweave_status guarded(F&& f) noexcept {
  try {
    f();
    return UPWEAVE_OK;
  } catch (const Error& e) {
    return set_error(e.status(), e.what());
  } catch (const std::bad_alloc&) {
    return set_error(Status::kMemory, "the memory that the call needs cannot be had");
  } catch (const std::length_error&) {
    return set_error(Status::kMemory, "the memory that the call needs cannot be had");
  } catch (const std::exception& e) {
    return set_error(Status::kInternal, e.what());
  } catch (...) {
    return set_error(Status::kInternal, "an unknown exception");
  }
}

}  // namespace upweave
