"""Radiographs as they are stored, DICOM, PNG or JPEG, and as the archive's 8 bit PNG (paper 004, B.4)."""
