"""Traces as files: tables for programs, timelines for people."""
