"""Device, target and memory-scope planning. ``docs/devices.md`` is the tutorial, ``SOURCES.md`` names the proposal."""

from collage._errors import DeviceConflict
from collage.device._annotate import AnnotateSEScopes, CompositePattern, MergeAndAnnotate, candidates_of
from collage.device._annotations import (
    RESULT_SE_SCOPE,
    asked_scope,
    demand_memory_scope,
    on_device,
    planned_scope,
    planned_value_scope,
    require_output,
    required_output,
)
from collage.device._config import CompilationConfig
from collage.device._copy_op import (
    DEVICE_COPY,
    copies_from_identities,
    copies_to_identities,
    copy_scopes,
    device_copy,
    is_device_copy,
)
from collage.device._describe import describe_plan
from collage.device._kept import KeptAnnotations, LostAnnotation, has_demands
from collage.device._operators import host_operands, register_host_operands, unread_operands
from collage.device._partition_by_scope import PartitionBySEScope
from collage.device._plan import DevicePlan, PlannedCopy, may_take, targets_for
from collage.device._plan_devices import PlanDevices, clear_plan
from collage.device._scope import ANYWHERE, ScopeLike, SEScope, VirtualDevice, as_scope
from collage.device._toml import DeviceRequests, read_device_plan

__all__ = [
    "ANYWHERE",
    "DEVICE_COPY",
    "RESULT_SE_SCOPE",
    "AnnotateSEScopes",
    "CompilationConfig",
    "CompositePattern",
    "DeviceConflict",
    "DevicePlan",
    "DeviceRequests",
    "KeptAnnotations",
    "LostAnnotation",
    "MergeAndAnnotate",
    "PartitionBySEScope",
    "PlanDevices",
    "PlannedCopy",
    "SEScope",
    "ScopeLike",
    "VirtualDevice",
    "as_scope",
    "asked_scope",
    "candidates_of",
    "clear_plan",
    "copies_from_identities",
    "copies_to_identities",
    "copy_scopes",
    "demand_memory_scope",
    "describe_plan",
    "device_copy",
    "has_demands",
    "host_operands",
    "is_device_copy",
    "may_take",
    "on_device",
    "planned_scope",
    "planned_value_scope",
    "read_device_plan",
    "register_host_operands",
    "require_output",
    "required_output",
    "targets_for",
    "unread_operands",
]
