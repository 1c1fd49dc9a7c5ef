"""What a job runs on: devices, links, issuers, and what the tasks of a device share."""
