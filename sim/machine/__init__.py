"""The machine as the engine sees it: devices, links and routes, communicators, tasks and issuers."""
