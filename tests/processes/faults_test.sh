#!/usr/bin/env bash
# Runs faults (faults.cc) with the arguments that it is given.
exec "$@"
